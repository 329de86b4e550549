"""From a run to answers: bundles and the server that reads them."""

"""What one request may ask for; a value beyond these is refused with a sentence that names it."""

MAX_BODY_BYTES = 256 * 1024  # a full history of long keys needs about half of it
MAX_HEAD_BYTES = 32 * 1024  # request line and header fields together
MAX_K = 1_000
MAX_HISTORY = 1_000
MAX_KEY_LENGTH = 256
MAX_SEARCH_LENGTH = 200
MAX_PAGE_ITEMS = 100
MAX_OFFSET = 10_000
MAX_USER_FEATURES = 100
MAX_CONNECTIONS = 1_024
MAX_PIPELINED = 16  # requests that a connection may send before the first is answered

"""The shapes of requests and responses; the OpenAPI document is made from them."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from crossbatch.serving.server.limits import (
    MAX_HISTORY,
    MAX_K,
    MAX_KEY_LENGTH,
    MAX_USER_FEATURES,
)

Key = Annotated[str, Field(min_length=1, max_length=MAX_KEY_LENGTH)]


def _whole(value: object) -> object:
    """JSON knows no integers: 20.0 is 20."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(_whole)]
Slot = Literal["main", "compare"]
FeatureValue = str | float | int | bool | list[str] | list[float] | None


class RecommendRequest(BaseModel):
    """A user, as far as the server needs to know them."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={"examples": [{"history": ["2571", "260"], "k": 10}]},
    )

    history: list[Key] = Field(
        max_length=MAX_HISTORY, description="Item ids as in the source, oldest first."
    )
    k: Whole = Field(20, ge=1, le=MAX_K, description="How many items.")
    exclude_seen: bool = Field(True, description="Leave out items of the history.")
    user_features: dict[str, FeatureValue] | None = Field(
        None, max_length=MAX_USER_FEATURES, description="Values by name, if the model reads any."
    )
    explain: bool = Field(
        False, description="Also say why: the nearest item of the history, a list per interest."
    )
    bundle: Slot = Field("main", description='"compare": the bundle given by --compare.')


class BundleName(BaseModel):
    """Which bundle answered."""

    name: str
    version: str = Field(description="A short hash of all that the bundle holds.")


class Item(BaseModel):
    """An item of the catalogue."""

    id: str = Field(description="As in the source.")
    title: str = Field(description="The id where there is no title.")
    count: int = Field(description="Interactions in training.")
    popularity: Literal["head", "mid", "tail", "cold"] = Field(
        description="Thirds of the training interactions; cold: none at all."
    )


class Neighbour(Item):
    """An item with its score."""

    score: float


class Reason(BaseModel):
    """The item of the history that is nearest to a recommended one."""

    id: str
    similarity: float = Field(description="Cosine of the two item vectors.")


class Recommended(Neighbour):
    """An item of a user's list."""

    interest: int = Field(description="Which of the user's vectors it answers to, from 0.")
    because: Reason | None = Field(None, description="Only with explain.")


class Interest(BaseModel):
    """One of the user's vectors by itself."""

    interest: int
    near: list[str] = Field(description="Ids of the history that it is closest to.")
    items: list[Neighbour]


class RecommendResponse(BaseModel):
    """A user's list, best first."""

    bundle: BundleName
    items: list[Recommended]
    interests: list[Interest] | None = Field(None, description="Only with explain.")
    popular: bool = Field(
        description="Nothing was known of the user: these are the most popular items."
    )
    unknown: list[str] = Field(description="Ids of the history that the bundle does not hold.")


class SimilarResponse(BaseModel):
    """An item's neighbours by cosine, nearest first."""

    bundle: BundleName
    item: Item
    items: list[Neighbour]


class ItemsResponse(BaseModel):
    """A page of items."""

    items: list[Item]
    more: bool = Field(description="Whether there is a further page.")
    unknown: list[str] = Field(description="Ids asked for that the bundle does not hold.")


class FeatureFacts(BaseModel):
    """A user feature that the model reads."""

    kind: str
    values: list[str] = Field(description="The commonest ones, where they can be listed.")


class BundleFacts(BundleName):
    """What serves in one slot."""

    items: int
    dim: int
    interests: int
    history_length: int
    user_features: dict[str, FeatureFacts]
    model: str
    metrics: dict[str, Any]
    serving_since: str
    problem: str | None


class HealthResponse(BaseModel):
    """Whether the server answers, and with what."""

    status: Literal["ok", "stale"] = Field(description="stale: a newer bundle was refused.")
    bundles: dict[str, BundleFacts] | None = Field(
        description="By slot; null for a caller without the token."
    )


class Error(BaseModel):
    """What went wrong."""

    status: int
    message: str


class ErrorResponse(BaseModel):
    """The body of every answer that is not a good one."""

    error: Error

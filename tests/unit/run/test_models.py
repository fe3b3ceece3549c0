"""A model that is read back from what was kept of it equals the one that was written."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import AliasGenerator, BaseModel, ConfigDict, Field, TypeAdapter
from pydantic.alias_generators import to_camel
from pydantic.dataclasses import dataclass as checked_dataclass

from docket_celery.run.values import normalise


class Item(BaseModel):
    model_config = ConfigDict(alias_generator=AliasGenerator(serialization_alias=to_camel))
    unit_price: int = 0
    next_item: Item | None = None


class Basket(BaseModel):
    """Its aliases are for what it sends elsewhere: it reads the names of its fields."""

    all_items: list[Item] = []
    order_total: int = Field(0, serialization_alias="total")


class Inbound(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)
    unit_price: int = 0
    hidden: int = Field(0, exclude=True)


@checked_dataclass
class Sent:
    unit_price: int = Field(0, alias="price")
    order_total: int = Field(0, serialization_alias="total")
    received: int = Field(0, validation_alias="in")


@pytest.mark.parametrize(
    "value",
    [
        Basket(all_items=[Item(unit_price=3, next_item=Item(unit_price=4))], order_total=7),
        Item(unit_price=3),
        Inbound(unit_price=3),
        TypeAdapter(Sent).validate_python({"price": 3, "order_total": 7, "in": 8}),
    ],
    ids=repr,
)
def test_a_model_is_kept_under_the_names_that_it_reads(value: Any) -> None:
    assert TypeAdapter(type(value)).validate_python(normalise(value, "$.field", max_bytes=None)) == value

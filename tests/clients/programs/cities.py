"""A schema that refers to a definition, as pydantic writes it for an enumeration."""

from enum import Enum

from pydantic import BaseModel


class City(Enum):
    PARIS = "Paris"
    ROME = "Rome"


class Weather(BaseModel):
    """The weather of a city."""

    city: City
    degrees: int

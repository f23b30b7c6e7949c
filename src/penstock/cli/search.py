"""`penstock search`: find the scenes of a STAC API, as a table, as GeoJSON, or as the requests of a batch."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args
from urllib.parse import urlsplit

import typer

from penstock.cli.display import err, fitted, out, print_json
from penstock.cli.options import JOB_FAILED, AsJson, Data, begin_of, end_of
from penstock.cli.run import read_document
from penstock.cli.upkeep import load

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.config import Settings
    from penstock.intake.item_area import NamedPolygon

#: Characters of an id that are printed.
_ID_CHARS = 500
#: A file that is said to have this many bytes or more is not counted.
_SIZE_BYTES = 1 << 60


def search(
    collection: Annotated[str, typer.Argument(help="Id of the collection, such as sentinel-2-l2a.")],
    stac: Annotated[str, typer.Option("--stac", metavar="URL", help="Landing page of the STAC API.")],
    area: Annotated[
        str | None, typer.Option("--area", metavar="FILE", help="GeoJSON with a polygon, in longitude and latitude.")
    ] = None,
    begin: Annotated[
        datetime | None, typer.Option("--from", metavar="DAY|TIME", parser=begin_of, help="Earliest time (UTC).")
    ] = None,
    end: Annotated[
        datetime | None, typer.Option("--to", metavar="DAY|TIME", parser=end_of, help="Latest time, or last day (UTC).")
    ] = None,
    cloud_below: Annotated[
        float | None, typer.Option("--cloud-below", metavar="PERCENT", help="Only scenes with less cloud.")
    ] = None,
    condition: Annotated[
        str | None, typer.Option("--filter", metavar="TEXT", help="CQL2 text: \"platform = 'sentinel-2a'\".")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Number of scenes, at most.")] = 100,
    jobs: Annotated[
        str | None,
        typer.Option(
            metavar="scene|mosaic|series",
            help="Print the lines of a batch: a job for each scene, for each day, or one with all days as its dates.",
        ),
    ] = None,
    ids: Annotated[bool, typer.Option("--ids", help="Print only the ids.")] = False,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Find scenes in a STAC API: penstock search sentinel-2-l2a --stac URL --area aoi.geojson --cloud-below 20.

    `--jobs scene | penstock batch submit - --model csmask` runs a model on the scenes. `--json` prints the items as a
    GeoJSON FeatureCollection with their footprints. Access profiles of the settings apply.
    """
    from penstock.config_tables import DEFAULT_TENANT
    from penstock.intake.guard import GuardedClient
    from penstock.intake.item_area import overlaps
    from penstock.intake.item_filter import why_not
    from penstock.intake.stac_search import StacSearch, StacSearches, together

    _check_output(jobs, ids=ids, as_json=as_json)
    _check_times(begin, end)
    document = None if area is None else read_document(area, "--area")
    polygons = () if document is None else _polygons(document)
    passing = _filter(condition, cloud_below)
    wanted = StacSearch(stac, [collection], together([each.geometry for each in polygons]), begin, end, passing)
    searches = StacSearches(GuardedClient(_allowing(load(data), stac)), DEFAULT_TENANT)

    def fits(item: Mapping[str, Any]) -> bool:
        there = not polygons or overlaps(polygons, item.get("geometry"))
        return there and (passing is None or why_not(passing, item) is None)

    items = sorted(searches.items(wanted, fits, limit), key=_time_and_id)
    if not items:
        err.print(f"penstock: no item of {collection} matches: search a longer time, a larger area or more cloud")
        raise typer.Exit(JOB_FAILED)
    if len(items) == limit:
        err.print(f"these are the first {limit}: there may be more, see --limit")
    _print(items, jobs, document, ids=ids, as_json=as_json)


def _check_output(jobs: str | None, *, ids: bool, as_json: bool) -> None:
    """Raise `BadParameter` for jobs of no kind, and for more than one form of the output."""
    from penstock.intake.stac_jobs import JobKind

    kinds = get_args(JobKind)
    if jobs is not None and jobs not in kinds:
        raise typer.BadParameter(f"--jobs {jobs}: write {', '.join(kinds[:-1])} or {kinds[-1]}")
    if as_json + ids + (jobs is not None) > 1:
        raise typer.BadParameter("write one of --json, --ids and --jobs")


def _check_times(begin: datetime | None, end: datetime | None) -> None:
    if begin is not None and end is not None and begin > end:
        raise typer.BadParameter(f"--from {begin:%Y-%m-%dT%H:%M:%SZ} lies after --to {end:%Y-%m-%dT%H:%M:%SZ}")


def _time_and_id(item: Mapping[str, Any]) -> tuple[datetime, str]:
    from penstock.intake.item_filter import item_time

    return item_time(item) or datetime.min.replace(tzinfo=UTC), str(item.get("id"))


def _print(
    items: Sequence[Mapping[str, Any]], jobs: str | None, area: Mapping[str, Any] | None, *, ids: bool, as_json: bool
) -> None:
    """Print items as the lines of a batch with this kind of jobs, as GeoJSON, as ids or as a table."""
    from penstock.intake.stac_jobs import JobKind, batch_lines
    from penstock.json_body import shown

    if jobs is not None:
        for line in batch_lines(items, cast("JobKind", jobs), area):
            print_json(line, indent=None)
    elif as_json:
        print_json({"type": "FeatureCollection", "features": items})
    elif ids:
        for item in items:
            out.print(shown(item.get("id"), _ID_CHARS), soft_wrap=True)
    else:
        rows = [_row(item) for item in items]
        out.print(fitted(out, ("time", "cloud", "id", "size"), rows, omit=("size",)))


def _allowing(settings: Settings, url: str) -> Settings:
    """Return the settings of a search by the user of this machine: any public host, and the one that was named."""
    try:
        parts = urlsplit(url)
        port = parts.port or {"https": 443, "http": 80}[parts.scheme]
    except (KeyError, ValueError):
        raise typer.BadParameter(f"--stac {url}: write the address as https://HOST/PATH") from None
    pair = f"{parts.netloc.rpartition(':')[0] if parts.port else parts.netloc}:{port}"
    hosts = (*settings.allowed_hosts, pair)
    return settings.model_copy(update={"allowed_hosts": hosts, "fetch_any_public_host": True})


def _polygons(area: Mapping[str, Any]) -> Sequence[NamedPolygon]:
    """Return the polygons of `--area`."""
    from penstock.errors import InvalidRequest
    from penstock.intake.item_area import check_degrees, named_polygons

    try:
        check_degrees(polygons := named_polygons(area, place=""), place="")
    except InvalidRequest as error:
        raise typer.BadParameter(f"--area: no area: {error}") from error
    return polygons


def _filter(text: str | None, cloud_below: float | None) -> str | None:
    """Return the filter of both options."""
    from penstock.errors import InvalidRequest
    from penstock.intake.item_filter import parse_filter

    try:
        if text is not None:
            parse_filter(text)
    except InvalidRequest as error:
        raise typer.BadParameter(f"--filter: {'; '.join(issue.detail for issue in error.errors)}") from error
    cloud = None if cloud_below is None else f"eo:cloud_cover < {cloud_below!r}"
    both = [each for each in (cloud, text if cloud is None or text is None else f"({text})") if each is not None]
    return " AND ".join(both) or None


def _row(item: Mapping[str, Any]) -> Sequence[str]:
    from penstock.intake.item_filter import item_time, properties_of
    from penstock.json_body import shown

    at, cloud, assets = item_time(item), properties_of(item).get("eo:cloud_cover"), item.get("assets")
    listed = [each for each in assets.values() if isinstance(each, dict)] if isinstance(assets, dict) else []
    total = sum(size for each in listed if isinstance(size := each.get("file:size"), int) and 0 < size < _SIZE_BYTES)
    return (
        "" if at is None else f"{at:%Y-%m-%d %H:%M:%S}",
        f"{cloud:.1f} %" if isinstance(cloud, int | float) and 0 <= cloud <= 100 else "",
        shown(item.get("id"), _ID_CHARS),
        f"{total / 1e6:,.1f} MB" if total else "",
    )

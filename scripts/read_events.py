#!/usr/bin/env python3
"""Reads the event files below a folder with the real TensorBoard and prints one JSON document.

    python3 -m venv VENV && VENV/bin/pip install tensorboard==2.21.0 'setuptools<81'
    VENV/bin/python scripts/read_events.py LOGDIR

    {"runs": {RUN: {"python": {TAG: [[STEP, VALUE], ..]}, "fast": the same by the fast loader,
                    "histograms": {TAG: [[STEP, COUNT], ..]}, "images": {TAG: [[STEP, WIDTH, HEIGHT], ..]},
                    "hparams": {NAME: VALUE}, "session": {"status", "group", "metrics": {TAG: VALUE}} or null,
                    "layout": [{"category", "chart", "tags"}, ..], "duplicates": [[TAG, STEP], ..],
                    "files": [FILE, ..], "damaged": [MESSAGE, ..]}},
     "experiment": {"hparams": {NAME: [VALUE, ..]}, "metrics": [[GROUP, TAG], ..]},
     "layout": the charts that the custom scalars page shows}

python is TensorBoard's own event processing (`--load_fast=false`), fast the data server that it starts by default. Both
check both checksums of every record and stop at the first bad one; "damaged" says where a file stopped and why, as for
a run that was killed while it wrote. Where only one answer is printed and the two loaders differ, the script fails.
"""

import collections
import glob
import json
import os
import sys

from google.protobuf import json_format
from tensorboard import context
from tensorboard.backend.event_processing import data_provider, event_file_loader, plugin_event_multiplexer, tag_types
from tensorboard.compat import tf
from tensorboard.data import provider as tb_provider
from tensorboard.data import server_ingester
from tensorboard.plugins import base_plugin
from tensorboard.plugins.custom_scalar import custom_scalars_plugin, layout_pb2
from tensorboard.plugins.custom_scalar import metadata as custom_scalars
from tensorboard.plugins.hparams import api_pb2, backend_context, get_experiment, list_session_groups
from tensorboard.util import grpc_util

PLUGINS = ("scalars", "histograms", "images", "hparams", "custom_scalars")
EXPERIMENT = "0"
ALL = 10**9  # more points than a run has


def python_provider(logdir):
    """TensorBoard's Python reader, with every point kept."""
    multiplexer = plugin_event_multiplexer.EventMultiplexer(
        size_guidance={tag_types.TENSORS: 0}, tensor_size_guidance={plugin: 0 for plugin in PLUGINS}
    )
    multiplexer.AddRunsFromDirectory(logdir)
    multiplexer.Reload()
    return data_provider.MultiplexerDataProvider(multiplexer, logdir)


def fast_provider(logdir):
    """TensorBoard's data server, with every point kept, and the object that keeps it alive."""
    ingester = server_ingester.SubprocessServerDataIngester(
        server_binary=server_ingester.get_server_binary(),
        logdir=logdir,
        reload_interval=0,
        channel_creds_type=grpc_util.ChannelCredsType.LOCAL,
        samples_per_plugin={plugin: 0 for plugin in PLUGINS},
    )
    ingester.start()
    return ingester.data_provider, ingester


def series(read, convert):
    """{run: {tag: [converted point, ..]}}"""
    return {run: {tag: [convert(p) for p in points] for tag, points in tags.items()} for run, tags in read.items()}


def scalars(provider, ctx):
    read = provider.read_scalars(ctx, experiment_id=EXPERIMENT, plugin_name="scalars", downsample=ALL)
    return series(read, lambda p: [int(p.step), float(p.value)])


def histograms(provider, ctx):
    read = provider.read_tensors(ctx, experiment_id=EXPERIMENT, plugin_name="histograms", downsample=ALL)
    return series(read, lambda p: [int(p.step), float(p.numpy[:, 2].sum())])


def images(provider, ctx):
    def size(point):
        width, height = [provider.read_blob(ctx, blob_key=value.blob_key) for value in point.values[:2]]
        return [int(point.step), int(width), int(height)]

    read = provider.read_blob_sequences(ctx, experiment_id=EXPERIMENT, plugin_name="images", downsample=ALL)
    return series(read, size)


def charts(layout):
    return [
        {"category": category.title, "chart": chart.title, "tags": list(chart.multiline.tag)}
        for category in layout.category
        for chart in category.chart
    ]


def layouts(provider, ctx, logdir):
    """({run: charts}, charts of the merged page)"""
    read = provider.read_tensors(
        ctx,
        experiment_id=EXPERIMENT,
        plugin_name=custom_scalars.PLUGIN_NAME,
        run_tag_filter=tb_provider.RunTagFilter(tags=[custom_scalars.CONFIG_SUMMARY_TAG]),
        downsample=ALL,
    )
    convert = lambda p: charts(layout_pb2.Layout.FromString(tf.compat.as_bytes(p.numpy.item())))
    per_run = {run: [chart for point in tags.values() for chart in sum(point, [])] for run, tags in series(read, convert).items()}
    plugin = custom_scalars_plugin.CustomScalarsPlugin(base_plugin.TBContext(data_provider=provider, logdir=logdir))
    page = json_format.Parse(plugin.layout_impl(ctx, EXPERIMENT) or "{}", layout_pb2.Layout())
    return per_run, charts(page)


def python_value(value):
    return getattr(value, value.WhichOneof("kind"))


def hparams(provider, ctx):
    """({run: hyperparameters}, {run: session}, experiment) as the hparams page gets them."""
    backend = backend_context.Context(base_plugin.TBContext(data_provider=provider))
    statuses = [api_pb2.STATUS_UNKNOWN, api_pb2.STATUS_SUCCESS, api_pb2.STATUS_FAILURE, api_pb2.STATUS_RUNNING]
    request = api_pb2.ListSessionGroupsRequest(allowed_statuses=statuses, start_index=0, slice_size=ALL)
    values, sessions = {}, {}
    for group in list_session_groups.Handler(ctx, backend, EXPERIMENT, request).run().session_groups:
        for session in group.sessions:
            # The page has hyperparameters per group, not per run.
            values[session.name] = {name: python_value(value) for name, value in sorted(group.hparams.items())}
            sessions[session.name] = {
                "status": api_pb2.Status.Name(session.status),
                "group": group.name,
                "metrics": {os.path.join(m.name.group, m.name.tag): m.value for m in session.metric_values},
            }
    experiment = get_experiment.Handler(ctx, backend, EXPERIMENT, api_pb2.GetExperimentRequest()).run()
    described = {
        # TensorBoard lists a domain in the order of a hash set, which differs from process to process and reader to reader.
        "hparams": {h.name: sorted(map(python_value, h.domain_discrete.values), key=repr) for h in experiment.hparam_infos},
        "metrics": [[m.name.group, m.name.tag] for m in experiment.metric_infos],
    }
    return values, sessions, described


def raw(folder):
    """(files, (tag, step) pairs that occur twice, where a file stopped before its end) of one run's folder."""
    files = sorted(glob.glob(os.path.join(glob.escape(folder), "*tfevents*")))
    seen, damaged = collections.Counter(), []
    for path in files:
        for event in event_file_loader.LegacyEventFileLoader(path).Load():
            seen.update((value.tag, event.step) for value in event.summary.value)
        # The loaders above log a bad record and stop; the reader below them says what was wrong.
        reader = tf.pywrap_tensorflow.PyRecordReader_New(path)
        try:
            while True:
                reader.GetNext()
        except tf.errors.OutOfRangeError:
            pass
        except tf.errors.DataLossError as error:
            damaged.append(f"{os.path.basename(path)}: {error}")
    names = [os.path.basename(path) for path in files]
    return names, sorted([tag, step] for (tag, step), n in seen.items() if n > 1), damaged


def main():
    if len(sys.argv) != 2 or not os.path.isdir(sys.argv[1]):
        sys.exit("usage: read_events.py LOGDIR (an existing folder)")
    logdir = os.path.abspath(sys.argv[1])
    ctx = context.RequestContext()
    fast, alive = fast_provider(logdir)
    python = python_provider(logdir)

    def both(name, read):
        one, two = read(python), read(fast)
        if one != two:
            sys.exit(f"{name}: the Python reader has {one}, the fast loader {two}")
        return one

    by_python, by_fast = scalars(python, ctx), scalars(fast, ctx)
    histogram = both("histograms", lambda p: histograms(p, ctx))
    image = both("images", lambda p: images(p, ctx))
    layout, page = both("layout", lambda p: layouts(p, ctx, logdir))
    values, sessions, experiment = both("hparams", lambda p: hparams(p, ctx))
    runs = {}
    for run in sorted({run.run_name for p in (python, fast) for run in p.list_runs(ctx, experiment_id=EXPERIMENT)}):
        files, duplicates, damaged = raw(os.path.join(logdir, run))
        runs[run] = {
            "python": by_python.get(run, {}),
            "fast": by_fast.get(run, {}),
            "histograms": histogram.get(run, {}),
            "images": image.get(run, {}),
            "hparams": values.get(run, {}),
            "session": sessions.get(run),
            "layout": layout.get(run, []),
            "duplicates": duplicates,
            "files": files,
            "damaged": damaged,
        }
    print(json.dumps({"runs": runs, "experiment": experiment, "layout": page}))
    del alive


if __name__ == "__main__":
    main()

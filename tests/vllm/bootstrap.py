"""Envoy's configuration: the evidence reader, kv-scorer, selective-kv, and a route for each engine
and way of deciding."""

import json

# What a request's `x-mode` header asks for, as keys of the policy's configuration.
MODES = {
    # Decides and reports, and leaves the request as it is: what then happens is the engine's own.
    "observe": {"loadPolicy": "threshold", "minExternalReusableTokens": 1, "dryRun": True},
    "threshold": {"loadPolicy": "threshold", "minExternalReusableTokens": 256},
    "disable": {"loadPolicy": "disable"},
}
VM_ID = "e2e"
PLUGIN = "type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm"
MANAGER = (
    "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3."
    "HttpConnectionManager"
)
ROUTER = "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"
STRING = "type.googleapis.com/google.protobuf.StringValue"


def bootstrap(engines, bridge_port, keys, module, reader):
    """`engines`: port by name. `keys`: of the scorer's `evidence`."""
    scorer = {
        "endpoints": [f"127.0.0.1:{port}" for port in engines.values()],
        "scrape": {"cluster": "kv-scrape"},
        "evidence": {
            "events": {"cluster": "kv-events"},
            "tokenize": {"cluster": "tokenize", "timeout": "2s"},
            "blocksPerChunk": 1,
            # The files of engine `b` are its own and new.
            "secondaryTiers": "vouched",
            **keys,
        },
    }
    policies = [
        {"match": {"routeNamePrefix": f"{mode}-"}, **policy} for mode, policy in MODES.items()
    ]
    clusters = [static(f"engine-{name}", port) for name, port in engines.items()]
    clusters += [
        static("tokenize", *engines.values()),
        static("kv-events", bridge_port),
        {
            "name": "kv-scrape",
            "type": "ORIGINAL_DST",
            "lb_policy": "CLUSTER_PROVIDED",
            "original_dst_lb_config": {"use_http_header": True},
        },
    ]
    filters = [
        # Answers `GET /foreign-scorer/raw` with what shared data holds.
        plugin("foreign-scorer", reader, {}),
        plugin("kv-scorer", module, scorer),
        plugin("selective-kv", module, {"routes": policies}),
        {"name": "envoy.filters.http.router", "typed_config": {"@type": ROUTER}},
    ]
    manager = {
        "@type": MANAGER,
        "stat_prefix": "llm",
        # Whoever asks knows the id, and so where the evidence is.
        "preserve_external_request_id": True,
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "llm",
                    "domains": ["*"],
                    "routes": [route(mode, name) for mode in MODES for name in engines],
                    "response_headers_to_add": [
                        header("x-kv-decision", "%FILTER_STATE(wasm.selective_kv.decision:PLAIN)%")
                    ],
                }
            ]
        },
        "http_filters": filters,
    }
    listener = {
        "name": "llm",
        "address": address(0),
        "filter_chains": [
            {
                "filters": [
                    {
                        "name": "envoy.filters.network.http_connection_manager",
                        "typed_config": manager,
                    }
                ]
            }
        ],
    }
    return json.dumps(
        {
            "admin": {"address": address(0)},
            "static_resources": {"listeners": [listener], "clusters": clusters},
        },
        indent=1,
    )


def plugin(root_id, module, configuration):
    config = {
        "name": root_id,
        "root_id": root_id,
        "failure_policy": "FAIL_RELOAD",
        "vm_config": {
            "vm_id": VM_ID,
            "runtime": "envoy.wasm.runtime.v8",
            "code": {"local": {"filename": module}},
        },
        "configuration": {"@type": STRING, "value": json.dumps(configuration)},
    }
    return {"name": root_id, "typed_config": {"@type": PLUGIN, "config": config}}


def route(mode, engine):
    matched = [
        {"name": name, "string_match": {"exact": value}}
        for name, value in (("x-mode", mode), ("x-engine", engine))
    ]
    return {
        "name": f"{mode}-{engine}",
        "match": {"prefix": "/", "headers": matched},
        "route": {"cluster": f"engine-{engine}", "timeout": "0s"},
    }


def header(name, value):
    return {"header": {"key": name, "value": value}}


def static(name, *ports):
    hosts = [{"endpoint": {"address": address(port)}} for port in ports]
    return {
        "name": name,
        "type": "STATIC",
        "connect_timeout": "1s",
        "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": hosts}]},
    }


def address(port):
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}

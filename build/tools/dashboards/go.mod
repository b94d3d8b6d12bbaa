// The generator of the Grafana dashboards in manifests/monitoring, apart from the product's own module so that its dependencies never touch it.
module github.com/skerry-io/skerry/build/tools/dashboards

go 1.26.0

require github.com/grafana/grafana-foundation-sdk/go v0.0.22

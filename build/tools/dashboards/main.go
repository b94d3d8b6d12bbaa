// Command dashboards writes the Grafana dashboards of Skerry into a directory, one file each:
//
//	dashboards manifests/monitoring
//
// tests/metrics compares their queries with the documented metrics.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/common"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
	"github.com/grafana/grafana-foundation-sdk/go/stat"
	"github.com/grafana/grafana-foundation-sdk/go/table"
	"github.com/grafana/grafana-foundation-sdk/go/timeseries"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "dashboards:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("give the directory to write to, and nothing else")
	}
	for name, builder := range map[string]*dashboard.DashboardBuilder{"dashboard-fleet.json": fleet(), "dashboard-device.json": device()} {
		built, err := builder.Build()
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		raw, err := json.MarshalIndent(built, "", " ")
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if err := os.WriteFile(filepath.Join(args[0], name), append(raw, '\n'), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func source() common.DataSourceRef {
	return common.DataSourceRef{Type: cog.ToPtr("prometheus"), Uid: cog.ToPtr("${datasource}")}
}

func query(expr, legend string) *prometheus.DataqueryBuilder {
	return prometheus.NewDataqueryBuilder().Expr(expr).LegendFormat(legend)
}

// number is one value, the newest.
func number(title, unit, expr string) *stat.PanelBuilder {
	return stat.NewPanelBuilder().Title(title).Unit(unit).Datasource(source()).Height(4).Span(4).WithTarget(query(expr, "").Instant())
}

// curves are series over time.
func curves(title, unit string, targets ...*prometheus.DataqueryBuilder) *timeseries.PanelBuilder {
	p := timeseries.NewPanelBuilder().Title(title).Unit(unit).Datasource(source()).Height(8).Span(12).Min(0)
	for _, t := range targets {
		p.WithTarget(t)
	}
	return p
}

// list is a table of the newest values, a row for each series.
func list(title, unit, expr string) *table.PanelBuilder {
	return table.NewPanelBuilder().Title(title).Unit(unit).Datasource(source()).Height(8).Span(12).
		WithTarget(query(expr, "").Instant().Format(prometheus.PromQueryFormatTable))
}

func empty(title, uid string) *dashboard.DashboardBuilder {
	return dashboard.NewDashboardBuilder(title).Uid(uid).Tags([]string{"skerry", "kubernetes"}).Refresh("1m").Time("now-6h", "now").
		WithVariable(dashboard.NewDatasourceVariableBuilder("datasource").Label("Data source").Type("prometheus"))
}

func fleet() *dashboard.DashboardBuilder {
	return empty("Skerry / Fleet", "skerry-fleet").
		WithPanel(number("Links", "short", `sum(skerry_hub_sessions)`)).
		WithPanel(number("Devices without a link", "short", `count(max by (node) (max_over_time(skerry_node_link_start_timestamp_seconds[1d])) unless on (node) max by (node) (skerry_node_link_start_timestamp_seconds)) or vector(0)`)).
		WithPanel(number("Kubelets down", "short", `count(max by (node) (skerry_node_kubelet_alive) == 0) or vector(0)`)).
		WithPanel(number("Oldest backlog", "s", `time() - min(skerry_node_backlog_oldest_timestamp_seconds > 0) or vector(0)`)).
		WithPanel(number("Next certificate ends", "s", `min(skerry_node_certificate_expiration_timestamp_seconds) - time()`)).
		WithPanel(number("Replicas of cloudcore", "short", `count(skerry_hub_handshakes)`)).
		WithPanel(curves("Links by transport", "short", query(`sum by (transport) (skerry_hub_sessions)`, "{{transport}}"))).
		WithPanel(curves("Bytes of messages by class", "Bps", query(`sum by (class, direction) (rate(skerry_hub_bytes_total[5m]))`, "{{class}} {{direction}}"))).
		WithPanel(curves("Writes of devices", "ops", query(`sum by (topic, end) (rate(skerry_relay_writes_total[5m]))`, "{{topic}} {{end}}"))).
		WithPanel(curves("Pods by phase", "short", query(`sum by (phase) (skerry_node_pods)`, "{{phase}}"))).
		WithPanel(list("Links, versions", "short", `skerry_node_link_info`)).
		WithPanel(list("Devices with the largest backlog", "short", `topk(20, max by (node) (skerry_node_backlog_writes))`)).
		WithPanel(list("Devices with the least disk", "percentunit", `bottomk(20, min by (node, filesystem) (skerry_node_filesystem_available_bytes / skerry_node_filesystem_size_bytes))`)).
		WithPanel(list("Sites", "short", `count by (pool) (max by (node, pool) (label_replace(kube_node_labels{label_skerry_io_node_pool!=""}, "pool", "$1", "label_skerry_io_node_pool", "(.+)")))`)).
		WithPanel(list("Virtual IPs", "short", `skerry_virtualip_info`)).
		WithPanel(list("Static routes: nodes that lack them", "short", `skerry_staticroute_nodes_failed`)).
		WithPanel(list("Operations: age", "s", `time() - max by (operation, node, type) (skerry_nodeoperation_created_timestamp_seconds)`))
}

func device() *dashboard.DashboardBuilder {
	node := dashboard.NewQueryVariableBuilder("node").Label("Device").Datasource(source()).
		Query(dashboard.StringOrMap{String: cog.ToPtr("label_values(skerry_node_link_info, node)")}).
		Refresh(dashboard.VariableRefreshOnTimeRangeChanged).Sort(dashboard.VariableSortAlphabeticalAsc)
	of := func(metric string) string { return "max by (node) (" + metric + `{node="$node"})` }
	by := func(label, metric string) string { return "max by (" + label + ") (" + metric + `{node="$node"})` }
	rate := func(metric string) string { return "max(rate(" + metric + `{node="$node"}[15m]))` }
	return empty("Skerry / Device", "skerry-device").WithVariable(node).
		WithPanel(number("Link up for", "s", "time() - "+of("skerry_node_link_start_timestamp_seconds"))).
		WithPanel(number("Last heartbeat", "s", "time() - "+of("skerry_node_heartbeat_timestamp_seconds"))).
		WithPanel(number("Kubelet alive", "bool", of("skerry_node_kubelet_alive"))).
		WithPanel(number("Container runtime ready", "bool", of("skerry_node_container_runtime_ready"))).
		WithPanel(number("Certificate ends in", "s", of("skerry_node_certificate_expiration_timestamp_seconds")+" - time()")).
		WithPanel(number("Booted", "s", "time() - "+of("skerry_node_boot_timestamp_seconds"))).
		WithPanel(curves("Link", "short", query(of("skerry_node_link_up"), "up"), query(rate("skerry_node_link_connects_total")+" * 3600", "connects an hour"))).
		WithPanel(curves("Backlog", "short", query(of("skerry_node_backlog_writes"), "writes"))).
		WithPanel(curves("Memory", "bytes", query(of("skerry_node_memory_size_bytes"), "size"), query(of("skerry_node_memory_available_bytes"), "available"), query(of("skerry_node_edgecore_resident_memory_bytes"), "edgecore"))).
		WithPanel(curves("Processors", "short", query(of("skerry_node_cpus"), "processors"), query(rate("skerry_node_cpu_seconds_total"), "busy"), query(rate("skerry_node_edgecore_cpu_seconds_total"), "edgecore"), query(of("skerry_node_load1"), "load"))).
		WithPanel(curves("Disk available", "bytes", query(by("filesystem", "skerry_node_filesystem_available_bytes"), "{{filesystem}}"), query(by("filesystem", "skerry_node_filesystem_size_bytes"), "size of {{filesystem}}"))).
		WithPanel(curves("Pods", "short", query(by("phase", "skerry_node_pods"), "{{phase}}"), query(of("skerry_node_pods_not_running"), "that should run and don't"))).
		WithPanel(curves("Restarts of containers", "short", query(of("skerry_node_container_restarts"), "restarts"))).
		WithPanel(curves("Clock ahead of cloudcore's", "s", query(of("skerry_node_clock_offset_seconds"), "seconds"))).
		WithPanel(curves("Events dropped, writes refused", "short", query(of("skerry_node_events_dropped"), "events"), query(of("skerry_node_writes_refused_total"), "writes"))).
		WithPanel(list("Problems by the Node's conditions", "short", of("skerry_node_condition_problems"))).
		WithPanel(list("Operations that have not ended", "short", of("skerry_node_operations")))
}

package app

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/skerry-io/skerry/cloud/internal/core/kube"
)

// followed exports the watches at kube-apiserver to Prometheus: one for each collection, and one
// for each single object.
type followed struct {
	collections interface{ Status() []kube.Status }
	objects     interface{ Len() int }
}

func followedDescs() (objects, synced, failing, alone *prometheus.Desc) {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("skerry_kube_"+name, help, labels, nil)
	}
	return desc("collection_objects", "Objects of a watched collection, shared by all edges.", "group", "version", "resource"),
		desc("collection_synced", "Whether a collection has been listed: 1 or 0.", "group", "version", "resource"),
		desc("collection_failing", "Whether a collection can't be listed or watched at the moment: 1 or 0.", "group", "version", "resource"),
		desc("single_objects", "Secrets and ConfigMaps that are watched one by one.")
}

// Describe implements prometheus.Collector.
func (f followed) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(f, ch) }

// Collect implements prometheus.Collector.
func (f followed) Collect(ch chan<- prometheus.Metric) {
	objects, synced, failing, alone := followedDescs()
	number := func(yes bool) float64 {
		if yes {
			return 1
		}
		return 0
	}
	for _, s := range f.collections.Status() {
		labels := []string{s.Resource.Group, s.Resource.Version, s.Resource.Resource}
		ch <- prometheus.MustNewConstMetric(objects, prometheus.GaugeValue, float64(s.Objects), labels...)
		ch <- prometheus.MustNewConstMetric(synced, prometheus.GaugeValue, number(s.Synced), labels...)
		ch <- prometheus.MustNewConstMetric(failing, prometheus.GaugeValue, number(s.Failure != nil), labels...)
	}
	ch <- prometheus.MustNewConstMetric(alone, prometheus.GaugeValue, float64(f.objects.Len()))
}

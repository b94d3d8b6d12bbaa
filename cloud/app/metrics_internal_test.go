package app

import (
	"errors"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/skerry-io/skerry/cloud/internal/core/kube"
)

type statuses []kube.Status

func (s statuses) Status() []kube.Status { return s }

type count int

func (c count) Len() int { return int(c) }

func TestFollowed(t *testing.T) {
	f := followed{collections: statuses{
		{Resource: schema.GroupVersionResource{Version: "v1", Resource: "pods"}, Objects: 7, Synced: true},
		{Resource: schema.GroupVersionResource{Group: "skerry.io", Version: "v1alpha1", Resource: "staticroutes"}, Failure: errors.New("no such kind")},
	}, objects: count(3)}
	const want = `
# HELP skerry_kube_collection_failing Whether a collection can't be listed or watched at the moment: 1 or 0.
# TYPE skerry_kube_collection_failing gauge
skerry_kube_collection_failing{group="",resource="pods",version="v1"} 0
skerry_kube_collection_failing{group="skerry.io",resource="staticroutes",version="v1alpha1"} 1
# HELP skerry_kube_collection_objects Objects of a watched collection, shared by all edges.
# TYPE skerry_kube_collection_objects gauge
skerry_kube_collection_objects{group="",resource="pods",version="v1"} 7
skerry_kube_collection_objects{group="skerry.io",resource="staticroutes",version="v1alpha1"} 0
# HELP skerry_kube_collection_synced Whether a collection has been listed: 1 or 0.
# TYPE skerry_kube_collection_synced gauge
skerry_kube_collection_synced{group="",resource="pods",version="v1"} 1
skerry_kube_collection_synced{group="skerry.io",resource="staticroutes",version="v1alpha1"} 0
# HELP skerry_kube_single_objects Secrets and ConfigMaps that are watched one by one.
# TYPE skerry_kube_single_objects gauge
skerry_kube_single_objects 3
`
	if err := testutil.CollectAndCompare(f, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
}

package relay

import (
	"encoding/json"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/skerry-io/skerry/cloud/internal/core/kube"
)

// leaseTimeout bounds each request for Leases: as long as a kubelet's own may take. A hung
// kube-apiserver has each of the leaseWrites slots for so long.
const leaseTimeout = 10 * time.Second

// leaseTypes asks for a Lease as protobuf, as a kubelet does: of all that an idle fleet has
// kube-apiserver do, most is Leases.
const leaseTypes = kube.Protobuf + ",application/json"

// The resourceVersion to read Leases at.
const (
	newest = ""
	// cached is any version in kube-apiserver's cache, without a request to etcd.
	cached = "resourceVersion=0"
)

func leaseResource() schema.GroupVersionResource {
	return coordinationv1.SchemeGroupVersion.WithResource("leases")
}

func leaseKind(kind string) schema.GroupVersionKind {
	return coordinationv1.SchemeGroupVersion.WithKind(kind)
}

// leaseIn decodes a Lease.
func leaseIn(body []byte) (*coordinationv1.Lease, error) {
	l := &coordinationv1.Lease{}
	return l, decodeLeases(body, "Lease", l)
}

// decodeLeases decodes a Lease or a LeaseList.
func decodeLeases(body []byte, kind string, into interface{ Unmarshal([]byte) error }) error {
	var err error
	if kube.IsProtobuf(body) {
		err = kube.FromProtobuf(body, leaseKind(kind), into)
	} else {
		err = json.Unmarshal(body, into)
	}
	if err != nil {
		return fmt.Errorf("reading the %s: %w", kind, err)
	}
	return nil
}

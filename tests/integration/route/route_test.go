// Package route_test tests StaticRoutes in a real kube-apiserver: which are admitted, the messages
// for the others, and how the reports are merged into the status.
package route_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/tests/cluster"
)

// routes applies the CRD and returns a client for StaticRoutes once they are served.
func routes(t *testing.T) dynamic.NamespaceableResourceInterface {
	t.Helper()
	plane := cluster.Shared(t)
	plane.Apply(t, "manifests/crds")
	client, err := dynamic.NewForConfig(plane.Admin())
	if err != nil {
		t.Fatal(err)
	}
	all := client.Resource(v1alpha1.Resource(v1alpha1.StaticRoutes))
	cluster.Eventually(t, "StaticRoutes to be served", func(ctx context.Context) error {
		_, err := all.List(ctx, metav1.ListOptions{})
		return err
	})
	return all
}

func staticRoute(name string, spec map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "skerry.io/v1alpha1", "kind": "StaticRoute", "metadata": map[string]any{"name": name}, "spec": spec,
	}}
}

type m = map[string]any

func TestRoutes_11_RefusedAtAdmission(t *testing.T) {
	all := routes(t)
	for name, c := range map[string]struct {
		spec m
		want string // "": admitted
	}{
		"a network":               {m{"subnet": "192.168.1.0/24", "gateway": "10.0.0.1"}, ""},
		"no gateway":              {m{"subnet": "192.168.1.0/24"}, ""},
		"a host":                  {m{"subnet": "192.168.1.7"}, ""},
		"an IPv6 network":         {m{"subnet": "2001:db8::/64", "gateway": "2001:db8:1::1"}, ""},
		"a link-local next hop":   {m{"subnet": "2001:db8::/64", "nextHops": []any{m{"gateway": "fe80::1", "interface": "eth1"}}}, ""},
		"an interface":            {m{"subnet": "192.168.1.0/24", "nextHops": []any{m{"interface": "eth1"}}}, ""},
		"on link":                 {m{"subnet": "192.168.1.0/24", "nextHops": []any{m{"gateway": "10.9.9.9", "interface": "eth1", "onLink": true}}}, ""},
		"a blackhole":             {m{"subnet": "192.168.1.0/24", "type": "Blackhole"}, ""},
		"the default route":       {m{"subnet": "0.0.0.0/0", "table": int64(30)}, ""}, // the nodes refuse it, each for its own reasons
		"a probe":                 {m{"subnet": "::/0", "gatewayDetection": m{"probeIP": "fd00::1"}}, ""},
		"an address out of range": {m{"subnet": "999.1.1.1"}, "subnet must be a network such as 192.168.1.0/24 or 2001:db8::/64, or one IP address; 999.1.1.1 is neither"},
		"a mask too long":         {m{"subnet": "10.0.0.0/33"}, "10.0.0.0/33 is neither"},
		"words":                   {m{"subnet": "office"}, "office is neither"},
		"nothing":                 {m{"gateway": "10.0.0.1"}, "spec.subnet: Required value"},
		"bits behind the mask":    {m{"subnet": "192.168.1.7/24"}, "subnet 192.168.1.7/24 has bits set behind its mask"},
		"not canonical":           {m{"subnet": "2001:DB8::/64"}, "write the network itself"},
		"a host not canonical":    {m{"subnet": "2001:db8:0::1"}, "in lower case and as short as possible"},
		"a bad gateway":           {m{"subnet": "192.168.1.0/24", "gateway": "300.1.1.1"}, "gateway must be the IP address of a router, such as 192.168.1.1 or 2001:db8::1; 300.1.1.1 is not"},
		"a gateway with a mask":   {m{"subnet": "192.168.1.0/24", "gateway": "10.0.0.1/24"}, "10.0.0.1/24 is not"},
		"a multicast gateway":     {m{"subnet": "192.168.1.0/24", "gateway": "224.0.0.1"}, "224.0.0.1 is not"},
		"itself as gateway":       {m{"subnet": "192.168.1.0/24", "gateway": "127.0.0.1"}, "127.0.0.1 is not"},
		"two families":            {m{"subnet": "192.168.1.0/24", "gateway": "2001:db8::1"}, "subnet 192.168.1.0/24 and gateway 2001:db8::1 must be of one family"},
		"two families of hops":    {m{"subnet": "2001:db8::/64", "nextHops": []any{m{"gateway": "10.0.0.1"}}}, "must be of the family of subnet 2001:db8::/64"},
		"a source of another":     {m{"subnet": "2001:db8::/64", "preferredSource": "10.0.0.1"}, "must be of one family"},
		"a probe of another":      {m{"subnet": "2001:db8::/64", "gatewayDetection": m{"probeIP": "10.0.0.1"}}, "must be of one family"},
		"a bare link-local":       {m{"subnet": "2001:db8::/64", "gateway": "fe80::1"}, "write it under nextHops, with interface"},
		"a bare link-local hop":   {m{"subnet": "2001:db8::/64", "nextHops": []any{m{"gateway": "fe80::1"}}}, "set interface too"},
		"an empty hop":            {m{"subnet": "192.168.1.0/24", "nextHops": []any{m{"weight": int64(2)}}}, "a next hop needs a gateway, an interface, or both"},
		"gateway and hops":        {m{"subnet": "192.168.1.0/24", "gateway": "10.0.0.1", "nextHops": []any{m{"gateway": "10.0.0.2"}}}, "either gateway or nextHops"},
		"a blackhole's gateway":   {m{"subnet": "192.168.1.0/24", "type": "Blackhole", "gateway": "10.0.0.1"}, "a route of type Blackhole leads nowhere"},
		"on link without device":  {m{"subnet": "192.168.1.0/24", "nextHops": []any{m{"gateway": "10.0.0.1", "onLink": true}}}, "onLink needs both"},
		"a weight of nothing":     {m{"subnet": "192.168.1.0/24", "nextHops": []any{m{"gateway": "10.0.0.1", "weight": int64(0)}}}, "greater than or equal to 1"},
		"the local table":         {m{"subnet": "192.168.1.0/24", "table": int64(255)}, "table 255 (local) is the kernel's own"},
		"an mtu too small":        {m{"subnet": "2001:db8::/64", "mtu": int64(1000)}, "mtu must be at least 1280 for IPv6"},
		"an unknown type":         {m{"subnet": "192.168.1.0/24", "type": "Nat"}, "supported values"},
		"a gateway and a probe":   {m{"subnet": "192.168.1.0/24", "gateway": "10.0.0.1", "gatewayDetection": m{}}, "gatewayDetection is for routes without a gateway"},
	} {
		t.Run(name, func(t *testing.T) { admits(t, all, c.spec, c.want) })
	}
}

// admits tries to create a StaticRoute; want is in the message of its refusal, "" for one that is
// admitted.
func admits(t *testing.T, all dynamic.NamespaceableResourceInterface, spec m, want string) {
	t.Helper()
	_, err := all.Create(t.Context(), staticRoute("admission", spec), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	switch {
	case want == "" && err != nil:
		t.Errorf("refused: %v", err)
	case want != "" && !apierrors.IsInvalid(err):
		t.Errorf("got %v, want it invalid: %s", err, want)
	case want != "" && !strings.Contains(err.Error(), want):
		t.Errorf("got %v\nwant %s", err, want)
	}
}

// A route that no node could apply is refused before any node sees it.
func TestTraps_15_SenselessSelectorsAndHopsAreRefused(t *testing.T) {
	all := routes(t)
	selector := func(key, operator string, values ...any) m {
		e := m{"key": key, "operator": operator}
		if len(values) > 0 {
			e["values"] = values
		}
		return m{"subnet": "192.168.1.0/24", "nodeSelector": m{"matchExpressions": []any{e}}}
	}
	nextHops := func(hops ...any) m { return m{"subnet": "192.168.1.0/24", "nextHops": hops} }
	for name, c := range map[string]struct {
		spec m
		want string
	}{
		"In":                      {selector("zone", "In", "north", "south"), ""},
		"NotIn":                   {selector("zone", "NotIn", "north"), ""},
		"Exists":                  {selector("zone", "Exists"), ""},
		"DoesNotExist":            {selector("zone", "DoesNotExist"), ""},
		"labels":                  {m{"subnet": "192.168.1.0/24", "nodeSelector": m{"matchLabels": m{"zone": "north"}}}, ""},
		"no selector":             {m{"subnet": "192.168.1.0/24", "nodeSelector": m{}}, ""},
		"Near":                    {selector("zone", "Near", "north"), `Unsupported value: "Near": supported values: "In", "NotIn", "Exists", "DoesNotExist"`},
		"In nothing":              {selector("zone", "In"), "operator In needs values"},
		"Exists with values":      {selector("zone", "Exists", "north"), "operator Exists takes no values"},
		"two routers":             {nextHops(m{"gateway": "10.0.0.1"}, m{"gateway": "10.0.0.2"}), ""},
		"one router, two uplinks": {m{"subnet": "2001:db8::/64", "nextHops": []any{m{"gateway": "fe80::1", "interface": "eth0"}, m{"gateway": "fe80::1", "interface": "eth1"}}}, ""},
		"one router twice":        {nextHops(m{"gateway": "10.0.0.1"}, m{"gateway": "10.0.0.1", "weight": int64(5)}), "the same gateway and interface twice"},
		"one interface twice":     {nextHops(m{"interface": "eth0"}, m{"interface": "eth0"}), "the same gateway and interface twice"},
	} {
		t.Run(name, func(t *testing.T) { admits(t, all, c.spec, c.want) })
	}
}

func TestExamples(t *testing.T) {
	plane := cluster.Shared(t)
	all := routes(t)
	plane.Apply(t, "manifests/examples/routes")
	got, err := all.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Items) != 4 {
		t.Errorf("%d StaticRoutes, want 4", len(got.Items))
	}
	for _, r := range got.Items {
		if err := all.Delete(t.Context(), r.GetName(), metav1.DeleteOptions{}); err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
}

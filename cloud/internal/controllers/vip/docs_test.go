package vip_test

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes"

	"github.com/skerry-io/skerry/cloud/internal/controllers/vip"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/tests/cluster"
)

// block is the first block of a page that is fenced by three backquotes and this word.
func block(t *testing.T, page, word string) string {
	t.Helper()
	_, rest, found := strings.Cut(page, "\n```"+word+"\n")
	text, _, closed := strings.Cut(rest, "\n```")
	if !found || !closed {
		t.Fatalf("the page has no block %q", word)
	}
	return text
}

// virtualIPTable is kubectl's output: kube-apiserver makes it by the columns of the CRD.
func virtualIPTable(t *testing.T) *metav1.Table {
	t.Helper()
	plane := cluster.Shared(t)
	client, err := kubernetes.NewForConfig(plane.Admin())
	if err != nil {
		t.Fatal(err)
	}
	raw, err := client.RESTClient().Get().AbsPath("/apis/"+v1alpha1.SchemeGroupVersion.String()+"/"+v1alpha1.VirtualIPs).
		SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	table := &metav1.Table{}
	if err := json.Unmarshal(raw, table); err != nil {
		t.Fatal(err)
	}
	return table
}

// docs/vips.md, the columns that kube-apiserver prints, and a real object agree on the names of a
// VirtualIP: the page's own example gives the page's own line. And the page states that VRRP
// version 3 has no authentication, and how to limit that.
func TestTraps_10_DocsColumnsAndObjectsAgree(t *testing.T) {
	raw, err := os.ReadFile("../../../../docs/vips.md")
	if err != nil {
		t.Fatal(err)
	}
	page := string(raw)
	r := newReal(t)
	d := utilyaml.NewYAMLOrJSONDecoder(strings.NewReader(block(t, page, "yaml")), 4096)
	for {
		var o unstructured.Unstructured
		if d.Decode(&o) != nil {
			break
		}
		r.create(&o)
	}
	r.is("till", vip.ReasonAllocated, "shop-17 192.168.10.230")
	r.create(r.pool("nameless", map[string]any{"addresses": []any{"192.168.11.9"}}))
	r.service("other", nil)
	r.is("other", vip.ReasonAllocated, "nameless 192.168.11.9")

	// Every object is called ADDRESS.NETWORK, or ADDRESS where the pool names no network.
	names := r.vips()
	if len(names) != 2 {
		t.Fatalf("VirtualIPs: %q", names)
	}
	for _, name := range names {
		v := r.vip(name)
		want := strings.ReplaceAll(netip.MustParseAddr(v.Spec.Address).StringExpanded(), ":", "-")
		if v.Spec.Network != "" {
			want += "." + v.Spec.Network
		}
		if name != want {
			t.Errorf("a VirtualIP with address %s on network %q is called %s", v.Spec.Address, v.Spec.Network, name)
		}
	}

	// The page's lines are those that kubectl prints.
	_, listing, found := strings.Cut(page, "$ kubectl get virtualips\n")
	lines := strings.Split(listing, "\n")
	if !found || len(lines) < 2 {
		t.Fatal("the page does not show `kubectl get virtualips`")
	}
	table := virtualIPTable(t)
	var narrow, wide []string
	var columns []int
	for i, c := range table.ColumnDefinitions {
		if c.Priority == 0 {
			narrow, columns = append(narrow, strings.ToUpper(c.Name)), append(columns, i)
		} else {
			wide = append(wide, strings.ToUpper(c.Name))
		}
	}
	if header := strings.Fields(lines[0]); !slices.Equal(header, narrow) {
		t.Errorf("the page's columns are %q, kube-apiserver's %q", header, narrow)
	}
	for _, want := range []string{"NETWORK", "VRID"} {
		if !slices.Contains(wide, want) {
			t.Errorf("-o wide has no %s: %q", want, wide)
		}
	}
	row := strings.Fields(lines[1])
	shown := false
	for _, have := range table.Rows {
		if fmt.Sprint(have.Cells[0]) != row[0] {
			continue
		}
		shown = true
		for i, column := range columns[:5] { // name, address, pool, namespace, Service: the rest is the nodes' matter
			if cell := fmt.Sprint(have.Cells[column]); cell != row[i] {
				t.Errorf("column %s: the page says %s, kube-apiserver %s", narrow[i], row[i], cell)
			}
		}
	}
	if !shown {
		t.Errorf("the page shows %s, which the page's example does not make: %q", row[0], names)
	}
	for _, words := range []string{"`ADDRESS.NETWORK`", "VRRP version 3 has no authentication", "What limits it:"} {
		if !strings.Contains(page, words) {
			t.Errorf("the page does not say %q", words)
		}
	}
}

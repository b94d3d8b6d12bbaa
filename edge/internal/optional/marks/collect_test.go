package marks_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"

	"github.com/skerry-io/skerry/edge/internal/kernel/netfilter/mangle"
	"github.com/skerry-io/skerry/edge/internal/optional/marks"
	"github.com/skerry-io/skerry/tests/golden"
)

// objects reads testdata/objects.yaml.
func objects(t *testing.T) (o marks.Objects) {
	t.Helper()
	text, err := os.ReadFile("testdata/objects.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for part := range strings.SplitSeq(string(text), "\n---\n") {
		raw, err := yaml.YAMLToJSON([]byte(part))
		if err != nil {
			t.Fatal(err)
		}
		decoded, _, err := scheme.Codecs.UniversalDeserializer().Decode(raw, nil, nil)
		if err != nil {
			t.Fatalf("%v in %s", err, part)
		}
		switch x := decoded.(type) {
		case *corev1.Service:
			o.Services = append(o.Services, x)
		case *networkingv1.Ingress:
			o.Ingresses = append(o.Ingresses, x)
		case *networkingv1.ServiceCIDR:
			for _, c := range x.Spec.CIDRs {
				o.ServiceRanges = append(o.ServiceRanges, netip.MustParsePrefix(c))
			}
		}
	}
	return o
}

func lines(all []string) string { return strings.Join(all, "\n") + "\n" }

// entries are the collected lines that begin so.
func entries(c *marks.Collected, prefix string) (out []string) {
	for _, e := range c.Entries() {
		if strings.HasPrefix(e, prefix) {
			out = append(out, e)
		}
	}
	return out
}

// The same objects make the same list and the same rules, whatever order they come in.
func TestCollect(t *testing.T) {
	o := objects(t)
	for i := range 20 {
		rand.Shuffle(len(o.Services), func(i, j int) { o.Services[i], o.Services[j] = o.Services[j], o.Services[i] })
		rand.Shuffle(len(o.Ingresses), func(i, j int) { o.Ingresses[i], o.Ingresses[j] = o.Ingresses[j], o.Ingresses[i] })
		c := marks.Collect(o)
		r := marks.Plan(&c, marks.Settings{ClusterStatusPort: 12346})
		rules := func(text string, c mangle.Chains) string {
			return "# " + text + ": SKERRY-MARKS\n" + lines(c.Marks) + "# " + text + ": SKERRY-ACE\n" + lines(c.ACE)
		}
		golden.Check(t, "testdata/entries.golden", lines(c.Entries())+"# problems\n"+lines(c.Problems))
		golden.Check(t, "testdata/rules.golden", rules("iptables", r.V4)+rules("ip6tables", r.V6))
		if t.Failed() {
			t.Fatalf("in try %d", i)
		}
	}
}

func TestServices_01_ExcludedNamespacesAreLeftOut(t *testing.T) {
	c := marks.Collect(objects(t))
	for _, e := range c.Entries() {
		for _, out := range []string{" kube-system/", " kubevirt/", " longhorn-system/", " cdi/", " skerry-system/", " default/kubernetes "} {
			if strings.Contains(e, out) {
				t.Errorf("collected: %s", e)
			}
		}
	}
	if diff := cmp.Diff([]string{"service shop/kubernetes TCP 80 nodePort 30090 NodePort"}, entries(&c, "service shop/kubernetes ")); diff != "" {
		t.Errorf("another Service of that name (-want +got):\n%s", diff)
	}
}

func TestServices_02_FirstAddressByPrecedence(t *testing.T) {
	c := marks.Collect(objects(t))
	for name, want := range map[string]string{
		"a1-spec": "192.0.2.1", "a2-external": "192.0.2.2", "a3-kube-vip": "192.0.2.3,2001:db8::3", "a4-own": "192.0.2.4", "a5-none": "",
	} {
		for _, s := range c.Services {
			if s.Name == name {
				if got := strings.Trim(strings.Join(strings.Fields(fmt.Sprint(s.Addresses)), ","), "[]"); got != want {
					t.Errorf("%s is at %q, want %q", name, got, want)
				}
			}
		}
	}
}

// The range is the cluster's own: with another one, another address is passed over.
func TestCollect_serviceRanges(t *testing.T) {
	o := objects(t)
	address := func(name string) string {
		c := marks.Collect(o)
		all := entries(&c, "service lb/"+name+" ")
		if len(all) != 1 {
			t.Fatalf("%q", all)
		}
		_, at, _ := strings.Cut(all[0], " at ")
		return at
	}
	if got := address("b1-inside"); got != "10.112.0.1" {
		t.Errorf("b1-inside is at %q", got)
	}
	if got := address("b2-all-inside"); got != "" {
		t.Errorf("b2-all-inside is at %q", got)
	}
	o.ServiceRanges = []netip.Prefix{netip.MustParsePrefix("10.112.0.0/16")}
	if got := address("b1-inside"); got != "10.100.0.1" {
		t.Errorf("with another range, b1-inside is at %q", got)
	}
}

func TestServices_16_IngressesWithAndWithoutTLS(t *testing.T) {
	c := marks.Collect(objects(t))
	want := []string{
		"ingress shop/in-the-range http://*/ (Prefix) to shop:80",
		"ingress shop/unplaced https://*/ (Prefix) to shop:80",
		"ingress shop/unplaced-plain http://*/ (Prefix) to :",
		"ingress shop/web https://a.pay.example.com/ (Prefix) at 192.0.2.200,2001:db8::200 to pay:80",
		"ingress shop/web http://b.a.pay.example.com/ (Prefix) at 192.0.2.200,2001:db8::200 to pay:80",
		"ingress shop/web http://plain.example.com/ (ImplementationSpecific) at 192.0.2.200,2001:db8::200 to shop:80",
		"ingress shop/web https://shop.example.com/ (Prefix) at 192.0.2.200,2001:db8::200 to shop:80",
		"ingress shop/web https://shop.example.com/cart (Exact) at 192.0.2.200,2001:db8::200 to cart:http",
	}
	if diff := cmp.Diff(want, entries(&c, "ingress ")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	r := marks.Plan(&c, marks.Settings{})
	for _, rule := range []string{
		`-d 192.0.2.200/32 -p tcp -m multiport --dports 80 -m comment --comment "shop/web" -j CONNMARK --set-xmark 0x1a/0xff`,
		`-d 192.0.2.200/32 -p tcp -m multiport --dports 443 -m comment --comment "shop/web" -j CONNMARK --set-xmark 0x1b/0xff`,
		`-p tcp -m addrtype --dst-type LOCAL -m multiport --dports 80 -m comment --comment "shop/in-the-range shop/unplaced-plain" -j CONNMARK --set-xmark 0x1a/0xff`,
		`-p tcp -m addrtype --dst-type LOCAL -m multiport --dports 443 -m comment --comment "shop/unplaced" -j CONNMARK --set-xmark 0x1b/0xff`,
	} {
		if !strings.Contains(lines(r.V4.Marks), rule+"\n") {
			t.Errorf("there is no rule\n%s", rule)
		}
	}
	for _, rule := range append(r.V4.Marks, r.V6.Marks...) {
		if strings.Contains(rule, "example.com") || strings.Contains(rule, "reboot") {
			t.Errorf("a host name in a rule: %s", rule)
		}
	}
}

// Above the bound the newest are dropped and counted.
func TestCollect_bound(t *testing.T) {
	var o marks.Objects
	start := time.Unix(1_700_000_000, 0)
	for i := range marks.MaxEntries + 10 {
		s := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: fmt.Sprintf("s%05d", i), CreationTimestamp: metav1.NewTime(start.Add(-time.Duration(i) * time.Second))},
			Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{{Port: 80, NodePort: int32(1000 + i)}}},
		}
		o.Services = append(o.Services, s)
	}
	c := marks.Collect(o)
	if len(c.Services) != marks.MaxEntries || c.LeftOut != 10 || c.Services[0].Name != "s00010" {
		t.Errorf("%d entries from %s on, %d left out", len(c.Services), c.Services[0].Name, c.LeftOut)
	}
	if n := len(marks.Plan(&c, marks.Settings{}).V4.Marks); n != (marks.MaxEntries+14)/15 {
		t.Errorf("%d rules", n)
	}
}

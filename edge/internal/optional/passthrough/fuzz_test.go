package passthrough_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/edge/internal/optional/passthrough"
)

// Whatever a pod's annotation contains, a port is a plain name, and there are few of them.
func FuzzWanted(f *testing.F) {
	for _, seed := range []string{
		"eth1", "eth1, eth2.10", `eth1","type":"bridge`, "../eth1", "eth1\x00", "eth1\n$(reboot)", "a b", strings.Repeat("eth1,", 5000), strings.Repeat("e", 64<<10), "-eth", "%s", "'",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "p", Annotations: map[string]string{"skerry.io/ethernet": text}}}
		wanted, _ := passthrough.Wanted("edge1", []string{"eth1", "wan0", "../x", "a b"}, []*corev1.Pod{p})
		if len(wanted) > 16 {
			t.Errorf("%d ports", len(wanted))
		}
		for a := range wanted {
			if a.Port == "" || len(a.Port) > 15 || strings.Trim(a.Port, "abcdefghijklmnopqrstuvwxyz0123456789.-") != "" || a.Namespace != "n" {
				t.Errorf("%+v is taken", a)
			}
		}
	})
}

package usage

import (
	"encoding/json"
	"testing"

	corev1 "k8s.io/api/core/v1"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/skerry-io/skerry/cloud/internal/core/kube"
)

// Whatever usage a kubelet reports, the values that autoscalers read are encoded and never below
// zero.
func FuzzSummary(f *testing.F) {
	f.Add([]byte(`{"node":{"cpu":{"usageNanoCores":250000000},"memory":{"workingSetBytes":1048576}},"pods":[{"podRef":{"uid":"u"},"containers":[{"name":"c","cpu":{"usageNanoCores":1},"memory":{"workingSetBytes":1}}]}]}`))
	f.Add([]byte(`{"node":{"cpu":{"time":"9999-12-31T23:59:59Z","usageNanoCores":18446744073709551615},"memory":{"workingSetBytes":18446744073709551615}}}`))
	f.Add([]byte(`{"node":null,"pods":[null,{"containers":[{"cpu":null}]},{"containers":[{"name":"\u0000../","cpu":{"usageNanoCores":9223372036854775808},"memory":{"workingSetBytes":0}}]}]}`))
	f.Add([]byte(`{"pods":[{},{},{},{},{},{},{},{},{},{},{},{}]}`))
	object := &kube.Object{Key: kube.Key{Namespace: "n", Name: "p"}}
	f.Fuzz(func(t *testing.T, body []byte) {
		s := new(stats.Summary)
		if json.Unmarshal(body, s) != nil {
			return
		}
		look := func(list corev1.ResourceList) {
			for name, q := range list {
				if q.Sign() < 0 {
					t.Errorf("%s is %v", name, &q)
				}
			}
		}
		if n, ok := nodeMetrics("edge1", nil, s); ok {
			look(n.Usage)
			if _, err := json.Marshal(n); err != nil {
				t.Logf("what can't be encoded is not sent: %v", err)
			}
		}
		for i := range s.Pods {
			if m, ok := podMetrics(object, &s.Pods[i]); ok {
				for _, c := range m.Containers {
					look(c.Usage)
				}
			}
		}
	})
}

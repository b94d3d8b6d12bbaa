package campaign

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/tests/campaign/history"
)

const (
	// once begins the names of objects of which a device reports once.
	once = "once-"
	// vipPatience bounds the wait for a virtual IP: without it the restore has none to lose.
	vipPatience = 10 * time.Second
)

// body is the report of a value.
func (l level) body(value int64) []byte {
	switch l.resource {
	case routes:
		return fmt.Appendf(nil, `{"reason":"Applied","message":"%d"}`, value)
	case vips:
		return fmt.Appendf(nil, `{"state":"Holder","message":"%d"}`, value)
	}
	return fmt.Appendf(nil, `{"output":"%d"}`, value)
}

// reportedValue is the value that a status has of such a report.
func reportedValue(o *unstructured.Unstructured) (text string) {
	if text, _, _ = unstructured.NestedString(o.Object, "status", "output"); text != "" {
		return text
	}
	nodes, _, _ := unstructured.NestedSlice(o.Object, "status", "nodes")
	for _, n := range nodes {
		if entry, ok := n.(map[string]any); ok {
			text, _, _ = unstructured.NestedString(entry, "message")
		}
	}
	return text
}

// report has a device report a value of an object. It returns whether that is on its disk.
func (s *system) report(ctx context.Context, e *edge, l level, value int64) bool {
	r := history.Record{Kind: history.Put, Who: e.name, Resource: l.resource, Name: namespace + "/" + l.name, UID: string(l.uid), Value: value}
	return s.put(ctx, r, func(ctx context.Context) error {
		return e.client.CoreV1().RESTClient().Post().AbsPath("/report", l.resource, l.name, string(l.uid)).Body(l.body(value)).Do(ctx).Error()
	})
}

// makeOnce makes for each edge an operation, a route and a virtual IP, of which none has reported
// when it returns; report has each reported, once.
func (s *system) makeOnce(ctx context.Context, edges []*edge) (report func(context.Context)) {
	made := map[*edge][]level{}
	services := map[string]*edge{}
	create := func(e *edge, resource string, o *unstructured.Unstructured) {
		if o, err := s.reported[resource].Create(ctx, o, metav1.CreateOptions{}); err == nil {
			made[e] = append(made[e], level{resource, o.GetName(), o.GetUID()})
		}
	}
	for _, e := range edges {
		name := fmt.Sprintf("%s%s-%d", once, e.name, s.recorder.Now().Milliseconds())
		create(e, operations, operationOf(name, e.name))
		create(e, routes, objectOf("StaticRoute", name, map[string]any{
			"subnet": "198.18.0.0/24", "gateway": "192.0.2.1",
			"nodeSelector": map[string]any{"matchLabels": map[string]any{corev1.LabelHostname: e.name}},
		}))
		if s.makeService(ctx, name) == nil {
			services[name] = e
		}
	}
	for end := time.Now().Add(vipPatience); len(services) > 0 && ctx.Err() == nil && time.Now().Before(end); pause(ctx, 200*time.Millisecond) {
		all, err := s.reported[vips].List(ctx, metav1.ListOptions{})
		if err != nil {
			continue
		}
		for _, v := range all.Items {
			service, _, _ := unstructured.NestedString(v.Object, "spec", "service", "name")
			if e := services[service]; e != nil {
				made[e] = append(made[e], level{vips, v.GetName(), v.GetUID()})
				delete(services, service)
			}
		}
	}
	return func(ctx context.Context) {
		for e, all := range made {
			for _, l := range all {
				if s.report(ctx, e, l, 1) {
					e.onces.add(l)
				}
			}
		}
	}
}

func operationOf(name, node string) *unstructured.Unstructured {
	return objectOf("NodeOperation", name, map[string]any{"nodeName": node, "operation": "Drain"})
}

// makeService makes a Service that gets a virtual IP.
func (s *system) makeService(ctx context.Context, name string) error {
	class := v1alpha1.VIPClass
	_, err := s.client.CoreV1().Services(namespace).Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{v1alpha1.VIPPoolSelector: "campaign=" + pool}},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, LoadBalancerClass: &class, Selector: map[string]string{"app": "none"}, Ports: []corev1.ServicePort{{Port: 80}},
		},
	}, metav1.CreateOptions{})
	return err
}

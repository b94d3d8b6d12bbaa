// Package rollout names by events of DaemonSets the devices that their roll-outs wait for.
//
// With maxUnavailable 1, the default, a DaemonSet replaces no pod while one device is away: its pod
// counts as unavailable. That is Kubernetes' rule, and no status shows the device. It owns these
// events. It refuses to change a DaemonSet, and to report a roll-out that makes progress. A
// Reporter is run by one goroutine; it keeps a line for each DaemonSet that waits.
package rollout

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

const (
	// poll is how often DaemonSets are listed, from kube-apiserver's cache; pods and Nodes only
	// where one waits. A roll-out is told of when it has waited for one to two of these.
	poll = 30 * time.Second
	// again is how often an unchanged event is repeated.
	again = time.Hour
	// mostNamed bounds the devices that an event names.
	mostNamed = 10
)

// Reporter writes the events.
type Reporter struct {
	client  kubernetes.Interface
	waiting map[types.UID]said
}

type said struct {
	message string
	at      time.Time // zero: not yet
}

// New returns a Reporter with cloudcore's own rights. It starts nothing.
func New(client kubernetes.Interface) *Reporter {
	return &Reporter{client: client, waiting: map[types.UID]said{}}
}

// Run looks until ctx ends. It is for one replica at a time.
func (r *Reporter) Run(ctx context.Context) error {
	clear(r.waiting)
	events := record.NewBroadcaster(record.WithContext(ctx))
	events.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: r.client.CoreV1().Events(metav1.NamespaceAll)})
	defer events.Shutdown()
	r.run(ctx, events.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "cloudcore"}))
	return nil
}

func (r *Reporter) run(ctx context.Context, recorder record.EventRecorder) {
	tick := time.NewTicker(poll)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if err := r.look(ctx, recorder); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).V(1).Info("Failed to look for roll-outs that wait for devices, retrying", "err", err)
		}
	}
}

func (r *Reporter) look(ctx context.Context, recorder record.EventRecorder) error {
	cached := metav1.ListOptions{ResourceVersion: "0"}
	sets, err := r.client.AppsV1().DaemonSets(metav1.NamespaceAll).List(ctx, cached)
	if err != nil {
		return fmt.Errorf("listing DaemonSets: %w", err)
	}
	before := r.waiting
	r.waiting = map[types.UID]said{}
	var away map[string]bool
	for i := range sets.Items {
		set := &sets.Items[i]
		most, blocked := Blocked(set)
		if !blocked {
			continue
		}
		if away == nil {
			nodes, err := r.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0", LabelSelector: v1alpha1.EdgeOwnLabel})
			if err != nil {
				return fmt.Errorf("listing Nodes: %w", err)
			}
			away = notReady(nodes.Items)
		}
		pods, err := r.client.CoreV1().Pods(set.Namespace).List(ctx, metav1.ListOptions{ResourceVersion: "0", LabelSelector: metav1.FormatLabelSelector(set.Spec.Selector)})
		if err != nil {
			return fmt.Errorf("listing the pods of DaemonSet %s/%s: %w", set.Namespace, set.Name, err)
		}
		message := Message(set, most, devices(set, pods.Items, away))
		if message == "" {
			continue
		}
		s, now := before[set.UID], time.Now()
		if s.message != message {
			s = said{message: message, at: s.at}
			if len(before[set.UID].message) > 0 { // it has waited for a while, and now for others
				s.at = time.Time{}
			}
		}
		if _, known := before[set.UID]; known && now.Sub(s.at) >= again {
			recorder.Event(set, corev1.EventTypeWarning, "RolloutWaitsForDevices", message)
			s.at = now
		}
		r.waiting[set.UID] = s
	}
	return nil
}

// Blocked reports whether a DaemonSet has pods to replace and waits, since as many are unavailable
// as may be.
func Blocked(set *appsv1.DaemonSet) (most int, blocked bool) {
	u := set.Spec.UpdateStrategy
	desired := int(set.Status.DesiredNumberScheduled)
	if u.Type == appsv1.OnDeleteDaemonSetStrategyType || set.Status.ObservedGeneration < set.Generation || int(set.Status.UpdatedNumberScheduled) >= desired {
		return 0, false
	}
	allowed, surge := intstr.FromInt32(1), intstr.FromInt32(0)
	if r := u.RollingUpdate; r != nil {
		if r.MaxUnavailable != nil {
			allowed = *r.MaxUnavailable
		}
		if r.MaxSurge != nil {
			surge = *r.MaxSurge
		}
	}
	if n, err := intstr.GetScaledValueFromIntOrPercent(&surge, desired, true); err != nil || n > 0 {
		return 0, false
	}
	most, err := intstr.GetScaledValueFromIntOrPercent(&allowed, desired, true)
	return most, err == nil && most > 0 && int(set.Status.NumberUnavailable) >= most
}

func notReady(nodes []corev1.Node) map[string]bool {
	away := map[string]bool{}
	for _, n := range nodes {
		away[n.Name] = !slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		})
	}
	return away
}

// devices are those that are away and have a pod of a DaemonSet.
func devices(set *appsv1.DaemonSet, pods []corev1.Pod, away map[string]bool) (names []string) {
	for i := range pods {
		if p := &pods[i]; metav1.IsControlledBy(p, set) && away[p.Spec.NodeName] {
			names = append(names, p.Spec.NodeName)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Message is the message of an event; "" where no device is away.
func Message(set *appsv1.DaemonSet, most int, devices []string) string {
	if len(devices) == 0 {
		return ""
	}
	named := strings.Join(devices[:min(len(devices), mostNamed)], ", ")
	if more := len(devices) - mostNamed; more > 0 {
		named += fmt.Sprintf(" and %d more", more)
	}
	return fmt.Sprintf("the roll-out waits for devices that are away: %s. At most %d pods may be unavailable; to go on without these set spec.updateStrategy.rollingUpdate.maxUnavailable above %d",
		named, most, set.Status.NumberUnavailable)
}

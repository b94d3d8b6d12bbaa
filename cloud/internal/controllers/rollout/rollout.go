// Package rollout reports, by events on DaemonSets, the NotReady devices that block a rolling
// update.
//
// With the default maxUnavailable of 1, a DaemonSet replaces no pod while one device is NotReady,
// because the device's pod counts as unavailable. The DaemonSet's status does not name the device.
// The package owns these events. It refuses to change a DaemonSet, and to report an update that
// makes progress. It keeps one message for each blocked DaemonSet; it runs as package controller
// runs a level loop.
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

	"github.com/skerry-io/skerry/cloud/internal/controllers/controller"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

const (
	// poll is the interval between lists of DaemonSets, from kube-apiserver's cache. Nodes and pods
	// are listed only for a blocked update, which is reported after one to two intervals.
	poll = 30 * time.Second
	// again is the interval after which an unchanged event is repeated.
	again = time.Hour
	// mostNamed bounds the devices that an event names.
	mostNamed = 10
)

// reporter is one leadership.
type reporter struct {
	client  kubernetes.Interface
	sets    *controller.Kind[appsv1.DaemonSet]
	waiting map[types.UID]pending
}

type pending struct {
	message string
	at      time.Time // of the event; zero: it has not been sent
}

// Controller writes the events.
func Controller() controller.Config {
	return controller.Config{Name: "rollouts", RetryMin: poll, RetryMax: 10 * poll, Start: start}
}

func start(_ context.Context, run *controller.Run) (controller.Work, error) {
	r := &reporter{client: run.Kubernetes(), waiting: map[types.UID]pending{}, sets: controller.Of[appsv1.DaemonSet](run, appsv1.SchemeGroupVersion.WithResource("daemonsets"))}
	return controller.Level(func(ctx context.Context) (time.Duration, error) {
		if err := r.check(ctx); err != nil {
			return 0, err
		}
		return poll, nil
	}), nil
}

func (r *reporter) check(ctx context.Context) error {
	cached := metav1.ListOptions{ResourceVersion: "0"}
	sets, err := r.client.AppsV1().DaemonSets(metav1.NamespaceAll).List(ctx, cached)
	if err != nil {
		return fmt.Errorf("listing DaemonSets: %w", err)
	}
	waiting := map[types.UID]pending{}
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
		last, known := r.waiting[set.UID]
		if last.message != message {
			last = pending{message: message}
		}
		if now := time.Now(); known && now.Sub(last.at) >= again {
			r.sets.Event(set, corev1.EventTypeWarning, "RolloutWaitsForDevices", message)
			last.at = now
		}
		waiting[set.UID] = last
	}
	r.waiting = waiting
	return nil
}

// Blocked reports whether a DaemonSet has outdated pods and replaces no pod, because maxUnavailable
// pods are unavailable.
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

// devices returns the NotReady devices with a pod of a DaemonSet.
func devices(set *appsv1.DaemonSet, pods []corev1.Pod, away map[string]bool) (names []string) {
	for i := range pods {
		if p := &pods[i]; metav1.IsControlledBy(p, set) && away[p.Spec.NodeName] {
			names = append(names, p.Spec.NodeName)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Message is the message of an event; "" if no device is NotReady.
func Message(set *appsv1.DaemonSet, most int, devices []string) string {
	if len(devices) == 0 {
		return ""
	}
	named := strings.Join(devices[:min(len(devices), mostNamed)], ", ")
	if more := len(devices) - mostNamed; more > 0 {
		named += fmt.Sprintf(" and %d more", more)
	}
	return fmt.Sprintf("the rollout waits for devices that are away: %s. At most %d pods may be unavailable; to continue without these devices set spec.updateStrategy.rollingUpdate.maxUnavailable above %d",
		named, most, set.Status.NumberUnavailable)
}

package rollout

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"

	"github.com/skerry-io/skerry/cloud/internal/controllers/controller"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

func set(desired, updated, unavailable int32, most intstr.IntOrString) *appsv1.DaemonSet {
	return &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "agent", UID: "agent"},
		Spec: appsv1.DaemonSetSpec{
			Selector:       &metav1.LabelSelector{MatchLabels: map[string]string{"app": "agent"}},
			UpdateStrategy: appsv1.DaemonSetUpdateStrategy{Type: appsv1.RollingUpdateDaemonSetStrategyType, RollingUpdate: &appsv1.RollingUpdateDaemonSet{MaxUnavailable: &most}},
		},
		Status: appsv1.DaemonSetStatus{DesiredNumberScheduled: desired, UpdatedNumberScheduled: updated, NumberUnavailable: unavailable},
	}
}

func TestBlocked(t *testing.T) {
	one, third := intstr.FromInt32(1), intstr.FromString("30%")
	onDelete := set(3, 0, 1, one)
	onDelete.Spec.UpdateStrategy = appsv1.DaemonSetUpdateStrategy{Type: appsv1.OnDeleteDaemonSetStrategyType}
	surges := set(3, 0, 1, one)
	surges.Spec.UpdateStrategy.RollingUpdate.MaxSurge = &one
	unseen := set(3, 0, 1, one)
	unseen.Generation = 2
	for name, c := range map[string]struct {
		set  *appsv1.DaemonSet
		most int
		want bool
	}{
		"waits":                  {set(3, 0, 1, one), 1, true},
		"nothing to roll out":    {set(3, 3, 1, one), 0, false},
		"makes progress":         {set(3, 1, 0, one), 1, false},
		"one of ten may be away": {set(10, 2, 1, third), 3, false},
		"three of ten are away":  {set(10, 2, 3, third), 3, true},
		"replaced by hand":       {onDelete, 0, false},
		"surges":                 {surges, 0, false},
		"not observed yet":       {unseen, 0, false},
	} {
		if most, got := Blocked(c.set); got != c.want || most != c.most {
			t.Errorf("%s: %d, %t; want %d, %t", name, most, got, c.most, c.want)
		}
	}
}

// typed is a client without requests of its own.
type typed struct {
	kubernetes.Interface
	controller.Client
}

func (t typed) Kubernetes() kubernetes.Interface { return t.Interface }

// A DaemonSet whose rollout waits for devices that are away names them: once it has waited for
// a while, again when they are others, and once an hour.
func TestReporter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		agent := set(3, 1, 2, intstr.FromInt32(1))
		yes := true
		client := fake.NewClientset(agent)
		var failing atomic.Bool
		client.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
			return failing.Load(), nil, errors.New("unavailable")
		})
		node := func(name string, ready corev1.ConditionStatus) {
			n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1alpha1.EdgeOwnLabel: ""}}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}}}
			if _, err := client.CoreV1().Nodes().Update(ctx, n, metav1.UpdateOptions{}); err == nil {
				return
			}
			if _, err := client.CoreV1().Nodes().Create(ctx, n, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		for i, ready := range []corev1.ConditionStatus{corev1.ConditionTrue, corev1.ConditionUnknown, corev1.ConditionFalse} {
			name := fmt.Sprint("edge", i)
			node(name, ready)
			p := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name), Labels: map[string]string{"app": "agent"}, OwnerReferences: []metav1.OwnerReference{{UID: "agent", Controller: &yes}}},
				Spec:       corev1.PodSpec{NodeName: name},
			}
			if _, err := client.CoreV1().Pods("default").Create(ctx, p, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		events := record.NewFakeRecorder(10)
		manager := controller.NewManager(typed{Interface: client}, nil)
		manager.RecordTo(events)
		running, stop := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() { ended <- manager.Run(running, Controller()) }()
		defer func() {
			stop()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}()
		expect := func(when string, want ...string) {
			t.Helper()
			synctest.Wait()
			if len(events.Events) != len(want) {
				t.Fatalf("%s: %d events, want %d", when, len(events.Events), len(want))
			}
			for _, w := range want {
				if e := <-events.Events; !strings.Contains(e, w) {
					t.Errorf("%s: %s", when, e)
				}
			}
		}
		time.Sleep(time.Second)
		expect("at first")
		time.Sleep(poll)
		expect("it waits", "RolloutWaitsForDevices the rollout waits for devices that are away: edge1, edge2. At most 1 pods may be unavailable; to continue without these devices set spec.updateStrategy.rollingUpdate.maxUnavailable above 2")
		time.Sleep(10 * poll)
		expect("it waits on")
		failing.Store(true)
		time.Sleep(2 * poll)
		failing.Store(false)
		time.Sleep(10 * poll)
		expect("after a failed list")
		node("edge1", corev1.ConditionTrue)
		time.Sleep(poll)
		expect("for others", "away: edge2.")
		time.Sleep(again)
		expect("for an hour", "away: edge2.")
		node("edge2", corev1.ConditionTrue)
		time.Sleep(2 * again)
		expect("for nobody")
	})
}

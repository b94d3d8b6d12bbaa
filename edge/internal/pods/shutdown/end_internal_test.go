package shutdown

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// runtime behaves as containerd: StopContainer returns when the container has ended, which is after
// so long as it takes, or at the timeout.
type runtime struct {
	began time.Time
	takes map[string]time.Duration // by container; how long after SIGTERM it ends
	fails int                      // how many more lists fail
	hangs bool                     // never answers

	mu      sync.Mutex
	running []*runtimev1.Container
	log     []string
}

func (r *runtime) note(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.log = append(r.log, fmt.Sprintf("%v ", time.Since(r.began).Round(100*time.Millisecond))+fmt.Sprintf(format, args...))
}

func (r *runtime) wait(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (r *runtime) ListContainers(ctx context.Context, _ *runtimev1.ContainerFilter) ([]*runtimev1.Container, error) {
	if r.hangs {
		return nil, r.wait(ctx, time.Hour)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fails > 0 {
		r.fails--
		return nil, errors.New("no such socket")
	}
	return slices.Clone(r.running), nil
}

func (r *runtime) StopContainer(ctx context.Context, id string, timeout int64) error {
	r.note("%s SIGTERM, %d s", id, timeout)
	takes, limit := r.takes[id], time.Duration(timeout)*time.Second
	if err := r.wait(ctx, min(takes, limit)); err != nil {
		return err
	}
	if takes > limit {
		r.note("%s SIGKILL", id)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running = slices.DeleteFunc(r.running, func(c *runtimev1.Container) bool { return c.Id == id })
	return nil
}

func (r *runtime) ExecSync(ctx context.Context, id string, cmd []string, _ time.Duration) (stdout, stderr []byte, err error) {
	r.note("%s hook %s", id, cmd[0])
	return nil, nil, r.wait(ctx, 3*time.Second)
}

func (r *runtime) PodSandboxStatus(context.Context, string, bool) (*runtimev1.PodSandboxStatusResponse, error) {
	return &runtimev1.PodSandboxStatusResponse{}, nil
}

func (r *runtime) Close(context.Context) error { return nil }

func podWith(name string, priority int32, spec corev1.PodSpec) corev1.Pod {
	spec.Priority = &priority
	return corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Spec: spec}
}

func runs(names ...string) (all []*runtimev1.Container) {
	for _, n := range names {
		pod, container := n[:1], n[2:]
		all = append(all, &runtimev1.Container{Id: n, Labels: map[string]string{labelPod: pod, labelUID: pod, labelContainer: container}})
	}
	return all
}

func TestEnd(t *testing.T) {
	always, grace := corev1.ContainerRestartPolicyAlways, int64(8)
	hook := &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"/bye"}}}}
	pods := []corev1.Pod{
		podWith("a", 0, corev1.PodSpec{Containers: []corev1.Container{{Name: "main"}}}),
		podWith("h", 0, corev1.PodSpec{TerminationGracePeriodSeconds: &grace, Containers: []corev1.Container{{Name: "main", Lifecycle: hook}}}),
		podWith("s", 0, corev1.PodSpec{Containers: []corev1.Container{{Name: "main"}}, InitContainers: []corev1.Container{{Name: "side", RestartPolicy: &always}}}),
		podWith("z", 1000, corev1.PodSpec{Containers: []corev1.Container{{Name: "main"}}}),
	}
	two := []Period{{0, 10 * time.Second}, {1000, 5 * time.Second}}
	for name, test := range map[string]struct {
		runtime *runtime
		limit   time.Duration
		want    []string
		failed  bool
	}{
		"in their order": {
			&runtime{running: runs("a/main", "z/main"), takes: map[string]time.Duration{"a/main": 2 * time.Second, "z/main": time.Second}}, time.Minute,
			[]string{"0s a/main SIGTERM, 10 s", "2s z/main SIGTERM, 5 s"}, false,
		},
		"one that heeds no SIGTERM": {
			&runtime{running: runs("a/main", "z/main"), takes: map[string]time.Duration{"a/main": time.Hour}}, time.Minute,
			[]string{"0s a/main SIGTERM, 10 s", "10s a/main SIGKILL", "10s z/main SIGTERM, 5 s"}, false,
		},
		"a hook takes of the grace period": {
			&runtime{running: runs("h/main"), takes: map[string]time.Duration{"h/main": time.Hour}}, time.Minute,
			[]string{"0s h/main hook /bye", "3s h/main SIGTERM, 5 s", "8s h/main SIGKILL"}, false,
		},
		"a sidecar after what it serves": {
			&runtime{running: runs("s/side", "s/main"), takes: map[string]time.Duration{"s/main": 4 * time.Second}}, time.Minute,
			[]string{"0s s/main SIGTERM, 10 s", "4s s/side SIGTERM, 6 s"}, false,
		},
		"the runtime comes back": {
			&runtime{running: runs("a/main"), fails: 2}, time.Minute, []string{"1s a/main SIGTERM, 10 s"}, false,
		},
		"the runtime hangs": {&runtime{running: runs("a/main"), hangs: true}, 20 * time.Second, nil, true},
		"less time than is configured": {
			&runtime{running: runs("a/main", "z/main"), takes: map[string]time.Duration{"a/main": time.Hour}}, 6 * time.Second,
			[]string{"0s a/main SIGTERM, 4 s", "4s a/main SIGKILL", "4s z/main SIGTERM, 2 s"}, false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), test.limit)
				defer cancel()
				r := test.runtime
				r.began = time.Now()
				err := (&ender{r, pods, two}).run(ctx)
				if (err != nil) != test.failed {
					t.Errorf("it ended by %v", err)
				}
				slices.Sort(r.log)
				slices.Sort(test.want)
				if diff := cmp.Diff(test.want, r.log); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			})
		})
	}
}

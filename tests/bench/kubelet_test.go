package bench_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/skerry-io/skerry/tests/cluster"
)

const namespace = "default"

func pod(name, node string) *corev1.Pod {
	zero := int64(0)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			NodeName: node, DNSPolicy: corev1.DNSDefault, TerminationGracePeriodSeconds: &zero,
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}}, // a node that is cut off keeps its pods
			Volumes: []corev1.Volume{
				{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "shared"}}}},
				{Name: "secret", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "shared"}}},
			},
			Containers: []corev1.Container{{
				Name: "app", Image: "skerry.local/sample:1", ImagePullPolicy: corev1.PullIfNotPresent,
				VolumeMounts: []corev1.VolumeMount{{Name: "config", MountPath: "/config"}, {Name: "secret", MountPath: "/secret"}},
			}},
		},
	}
}

func names(prefix string, n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf("%s-%d", prefix, i)
	}
	return all
}

// shared makes the objects that the pods refer to, and waits for the account that they run as.
func (s *bench) shared(b *testing.B) {
	b.Helper()
	meta := metav1.ObjectMeta{Name: "shared"}
	_, err := s.client.CoreV1().ConfigMaps(namespace).Create(b.Context(), &corev1.ConfigMap{ObjectMeta: meta, Data: map[string]string{"k": "v"}}, metav1.CreateOptions{})
	check(b, err)
	_, err = s.client.CoreV1().Secrets(namespace).Create(b.Context(), &corev1.Secret{ObjectMeta: meta, StringData: map[string]string{"k": "v"}}, metav1.CreateOptions{})
	check(b, err)
	eventually(b, "the default ServiceAccount", 50*time.Millisecond, func(ctx context.Context) error {
		_, err := s.client.CoreV1().ServiceAccounts(namespace).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
}

func (s *bench) watchPods(ctx context.Context, b *testing.B, node string) watch.Interface {
	b.Helper()
	w, err := s.client.CoreV1().Pods(namespace).Watch(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String()})
	check(b, err)
	return w
}

// start makes pods on a node and returns how long it took until kube-apiserver had all of
// them Running.
func (s *bench) start(b *testing.B, pods ...*corev1.Pod) time.Duration {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), upTimeout)
	defer cancel()
	w := s.watchPods(ctx, b, pods[0].Spec.NodeName)
	defer w.Stop()
	begin := time.Now()
	for _, p := range pods {
		_, err := s.client.CoreV1().Pods(namespace).Create(ctx, p, metav1.CreateOptions{})
		check(b, err)
	}
	until(ctx, b, w, pods, func(_ watch.Event, p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning })
	return time.Since(begin)
}

// remove deletes pods and waits until they are gone.
func (s *bench) remove(b *testing.B, pods ...*corev1.Pod) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), upTimeout)
	defer cancel()
	for _, p := range pods {
		check(b, s.client.CoreV1().Pods(namespace).Delete(ctx, p.Name, metav1.DeleteOptions{}))
	}
	eventually(b, "pods to go", 20*time.Millisecond, func(ctx context.Context) error {
		list, err := s.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + pods[0].Spec.NodeName})
		if err != nil {
			return err
		}
		for _, have := range list.Items {
			for _, p := range pods {
				if have.Name == p.Name {
					return errors.New(have.Name + " is there still")
				}
			}
		}
		return nil
	})
}

func until(ctx context.Context, b *testing.B, w watch.Interface, pods []*corev1.Pod, done func(watch.Event, *corev1.Pod) bool) {
	b.Helper()
	left := map[string]bool{}
	for _, p := range pods {
		left[p.Name] = true
	}
	for len(left) > 0 {
		select {
		case <-ctx.Done():
			b.Fatalf("%d pods were not in time", len(left))
		case e, ok := <-w.ResultChan():
			if !ok {
				b.Fatal("the watch has ended")
			}
			if p, ok := e.Object.(*corev1.Pod); ok && done(e, p) {
				delete(left, p.Name)
			}
		}
	}
}

func podsOf(prefix, node string, n int) (all []*corev1.Pod) {
	for _, name := range names(prefix+"-"+node, n) {
		all = append(all, pod(name, node))
	}
	return all
}

// run is start and remove.
func (s *bench) run(b *testing.B, pods ...*corev1.Pod) float64 {
	b.Helper()
	took := s.start(b, pods...)
	s.remove(b, pods...)
	return ms(took)
}

const (
	whatPod    = "a pod with ConfigMap, Secret and token, made in the cloud: Running"
	whatTen    = "10 pods that share a ConfigMap and a Secret, made together: all Running"
	whatMemory = "memory of the process, resident"
	whatRise   = "how much more memory the process has, resident, after 300 pods with ConfigMap, Secret and token have come and gone"
	whatReboot = "reboot with 10 pods, each with ConfigMap, Secret and token, without a link: from the start of edgecore to all containers running"
)

// clearsAway is how long a node is busy with the leftovers of its pods when kube-apiserver has them
// no more: containerd's tasks, cgroups, volumes. Ten pods take seconds of CPU for that, on the
// cores that the other kubelet's pods are measured on, and without a pause they are charged to it.
const clearsAway = 6 * time.Second

// churned is how many times 10 pods come and go before memoryRise looks.
const churned = 30

// podRunning: from the pod's creation in the cloud to Running in the cloud. The two kinds of node
// take turns, so that a slow moment of the machine meets both.
func (s *bench) podRunning(b *testing.B) {
	s.up(b)
	r := row{what: whatPod, unit: "ms", floorName: "plain kubelet", goal: "at most 1.1 x + 100 ms", judge: func(ours, floor float64) (string, bool) {
		return fmt.Sprintf("%.2f x", ours/floor), ours <= 1.1*floor+100
	}}
	for i := range 2 * *rounds {
		r.ours = append(r.ours, s.run(b, podsOf(fmt.Sprint("one", i), edge, 1)...))
		r.floor = append(r.floor, s.run(b, podsOf(fmt.Sprint("one", i), plain, 1)...))
	}
	s.rows = append(s.rows, r)
}

// tenPods: as podRunning, with a pause after each sample, and the cost of each.
func (s *bench) tenPods(b *testing.B) {
	s.up(b)
	r := row{what: whatTen, unit: "ms", floorName: "plain kubelet", goal: "at most 1.1 x", judge: ratio(1.1)}
	costs := map[string]map[string][]float64{edge: {}, plain: {}} // of CPU, in ms
	requests := map[string][]float64{}
	run := func(node string, round int) float64 {
		pause(b, clearsAway)
		place, before := s.audit(b), s.spent(b)
		took := s.run(b, podsOf(fmt.Sprint("ten", round), node, 10)...)
		for program, v := range s.spent(b) {
			costs[node][program] = append(costs[node][program], v-before[program])
		}
		requests[node] = append(requests[node], float64(len(place.find(b, func(r cluster.Request) bool {
			own := by(r) == "system:node:"+node || node == edge && by(r) == "system:serviceaccount:skerry-system:cloudcore"
			return own && r.ObjectRef.Resource != "leases" // those come all the time, whatever the pods do
		}))))
		return took
	}
	for i := range *rounds {
		r.ours = append(r.ours, run(edge, i))
		r.floor = append(r.floor, run(plain, i))
	}
	r.note = fmt.Sprintf("from their making to their end the pods take %.3g ms of CPU (%s), the plain kubelet's %.3g (%s): %.2f x, where the %d cores bound both. kube-apiserver answers %.3g requests "+
		"meanwhile, of the node and of cloudcore, and %.3g of the plain kubelet; Leases are not counted. Between two samples %v pass, in which a node clears away what its deleted pods have left.",
		total(costs[edge]), shares(costs[edge]), total(costs[plain]), shares(costs[plain]), total(costs[edge])/total(costs[plain]), runtime.NumCPU(), median(requests[edge]), median(requests[plain]), clearsAway)
	s.rows = append(s.rows, r)
}

// memory: the resident set with ten pods, the same on both.
func (s *bench) memory(b *testing.B) {
	s.up(b)
	ours, theirs := podsOf("memory", edge, 10), podsOf("memory", plain, 10)
	s.start(b, ours...)
	s.start(b, theirs...)
	r := row{what: whatMemory, unit: "MB", floorName: "plain kubelet of the same version", goal: "at most 6 MB more", judge: above(6, "MB")}
	pause(b, time.Minute) // edgecore has given back by then the pages that only its start needed (docs/dev/decisions/0073)
	for range *rounds {
		pause(b, 20*time.Second)
		r.ours = append(r.ours, s.memoryOf(b, edge, "edgecore", "VmRSS:"))
		r.floor = append(r.floor, s.memoryOf(b, plain, "plainkubelet", "VmRSS:"))
	}
	r.note = fmt.Sprintf("pages of files, nearly all of the program itself: %.4g MB, and the plain kubelet's %.4g MB; the program is %.4g MB larger. All else, which is the heap, stacks and the runtime's "+
		"own: %.4g MB and %.4g MB. Both were read from the disk when they started; pages that a linker has just written come in larger pieces.",
		s.memoryOf(b, edge, "edgecore", "RssFile:"), s.memoryOf(b, plain, "plainkubelet", "RssFile:"), s.larger(b),
		s.memoryOf(b, edge, "edgecore", "RssAnon:"), s.memoryOf(b, plain, "plainkubelet", "RssAnon:"))
	s.remove(b, ours...)
	s.remove(b, theirs...)
	s.rows = append(s.rows, r)
}

// memoryRise: the memory that a long day of pods leaves behind, the same on both.
func (s *bench) memoryRise(b *testing.B) {
	s.up(b)
	const settle = 30 * time.Second
	r := row{what: whatRise, unit: "MB", floorName: "plain kubelet of the same version", goal: "at most 12 MB more", judge: above(12, "MB")}
	pause(b, settle)
	ours, theirs := s.memoryOf(b, edge, "edgecore", "VmRSS:"), s.memoryOf(b, plain, "plainkubelet", "VmRSS:")
	for i := range churned {
		s.run(b, podsOf(fmt.Sprint("rise", i), edge, 10)...)
		s.run(b, podsOf(fmt.Sprint("rise", i), plain, 10)...)
	}
	for range *rounds {
		pause(b, settle)
		r.ours = append(r.ours, s.memoryOf(b, edge, "edgecore", "VmRSS:")-ours)
		r.floor = append(r.floor, s.memoryOf(b, plain, "plainkubelet", "VmRSS:")-theirs)
	}
	s.rows = append(s.rows, r)
}

// larger is by how many MB edgecore's file is larger than the plain kubelet's.
func (s *bench) larger(b *testing.B) float64 {
	b.Helper()
	size := func(node, program string) float64 {
		all := processes(s.host(b, node), program)
		if len(all) == 0 {
			b.Fatalf("no %s runs on %s", program, node)
		}
		info, err := os.Stat(filepath.Join(all[0], "exe"))
		check(b, err)
		return float64(info.Size()) / 1e6
	}
	return size(edge, "edgecore") - size(plain, "plainkubelet")
}

func pause(b *testing.B, d time.Duration) {
	b.Helper()
	select {
	case <-time.After(d):
	case <-b.Context().Done():
		b.Fatal(b.Context().Err())
	}
}

// reboot: the processes of the containers are counted, the same on both: the nodes' reports come
// later.
func (s *bench) reboot(b *testing.B) {
	s.up(b)
	ours, theirs := podsOf("reboot", edge, 10), podsOf("reboot", plain, 10)
	s.start(b, ours...)
	s.start(b, theirs...)
	r := row{what: whatReboot, unit: "ms", floorName: "plain kubelet, on line", goal: "at most 1.0 x", judge: ratio(1)}
	for range *rounds {
		check(b, s.Reboot(b.Context(), edge, true))
		r.ours = append(r.ours, s.containersUp(b, edge, "edgecore", 10))
		check(b, s.Heal(b.Context(), edge))
		s.awaitLinked(b)
		check(b, s.Reboot(b.Context(), plain, false))
		r.floor = append(r.floor, s.containersUp(b, plain, "plainkubelet", 10))
		s.awaitReady(b, edge)
		s.awaitReady(b, plain)
	}
	s.remove(b, ours...)
	s.remove(b, theirs...)
	s.rows = append(s.rows, r)
}

// containersUp waits for the containers of n pods on a node that has just booted and returns the
// time since then, when its programs were started. A pod is two processes: its sandbox's and its
// container's, and every image here has one program, /app. The plain kubelet ends where it finds
// containerd before that is ready; it is started again at once, sooner than an init system would.
// edgecore waits.
func (s *bench) containersUp(b *testing.B, node, program string, n int) float64 {
	b.Helper()
	h := s.host(b, node)
	booted := time.Now()
	eventually(b, fmt.Sprintf("%d pods on %s", n, node), 10*time.Millisecond, func(ctx context.Context) error {
		have := len(processes(h, "app"))
		if have >= 2*n {
			return nil
		}
		if node == plain && len(processes(h, program)) == 0 {
			if err := s.Start(ctx, node, "kubelet"); err != nil {
				return err
			}
		}
		return fmt.Errorf("there are %d processes", have)
	})
	return ms(time.Since(booted))
}

package campaign

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/skerry-io/skerry/tests/campaign/history"
	"github.com/skerry-io/skerry/tests/cluster/host"
)

// containersOf names the running containers of a node's pods, as the kernel shows them: their
// processes, independent of the node's API.
const containersOf = "containers"

// settled is how long an undisturbed kubelet may take to hand in an event.
const settled = 10 * time.Second

// device is an edge of a trial: edgecore with its kubelet, and containers. Its viewers read its
// API, the content of its containers' volumes, and the running containers.
type device struct {
	s      *system
	edge   *edge
	find   func() (host.Host, error)
	cgroup string // of the node
	host   atomic.Pointer[host.Host]
	off    atomic.Bool // it is being booted: all containers ended with it

	mu        sync.Mutex
	pods      map[types.UID]*corev1.Pod // that its API shows, without those that are to end
	status    map[types.UID]int64       // the newest that its API showed
	alive     map[types.UID]int64       // the newest of a pod that had not ended
	ended     map[types.UID]int64       // the newest of one that has
	broken    int                       // faults that may keep the kubelet from handing in an event
	whole     time.Time                 // since when it is over
	runs      map[types.UID]container
	announced []container      // that have started, and whose events are to come
	volumes   map[string]int64 // the last values read, by pod and resource
	ids       sync.Map         // of the objects of slots' pods
}

// container is a process of a pod that runs.
type container struct {
	name  string
	uid   types.UID
	pid   int
	since time.Time
}

func newDevice(s *system, e *edge, find func() (host.Host, error), cgroup string) (*device, error) {
	d := &device{
		s: s, edge: e, find: find, cgroup: cgroup, whole: time.Now(), pods: map[types.UID]*corev1.Pod{}, status: map[types.UID]int64{},
		alive: map[types.UID]int64{}, ended: map[types.UID]int64{}, runs: map[types.UID]container{}, volumes: map[string]int64{},
	}
	return d, d.enter()
}

// enter looks for the host, which is another one after a reboot.
func (d *device) enter() error {
	h, err := d.find()
	if err == nil {
		d.host.Store(&h)
	}
	return err
}

func (d *device) dial(ctx context.Context, network, address string) (net.Conn, error) {
	return d.host.Load().Dial(ctx, network, address)
}

// connect makes a client of the device's own API.
func (d *device) connect(kubeconfig string) (kubernetes.Interface, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", filepath.Join(d.host.Load().Root(), kubeconfig))
	if err == nil {
		err = rest.LoadTLSFiles(cfg)
	}
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig of %s: %w", d.edge.name, err)
	}
	cfg.Dial, cfg.QPS, cfg.WarningHandler = d.dial, -1, rest.NoWarnings{}
	return kubernetes.NewForConfig(cfg)
}

// disturb notes that the kubelet may lose an event that it has not handed in, until the returned
// function is called.
func (d *device) disturb() (over func()) {
	add := func(n int) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.broken += n
		d.whole, d.announced = time.Now(), nil
	}
	add(1)
	return func() { add(-1) }
}

// run views the device until ctx ends.
func (d *device) run(ctx, work context.Context) {
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() {
		for ; ctx.Err() == nil; pause(ctx, 300*time.Millisecond) {
			d.lookAtVolumes(ctx)
		}
	})
	all.Go(func() {
		for ; ctx.Err() == nil; pause(ctx, 300*time.Millisecond) {
			if !d.off.Load() {
				d.lookAtContainers()
			}
		}
	})
	all.Go(func() { d.changeReadiness(work) })
	(&view{recorder: d.s.recorder, who: d.edge.name}).follow(ctx, podsOf(d.edge), d.onPod)
}

// onPod takes a pod as the device's API shows it. The kubelet writes there, so the first sight of a
// status is its write.
func (d *device) onPod(r history.Record, o metav1.Object) {
	d.mu.Lock()
	defer d.mu.Unlock()
	pod, ok := o.(*corev1.Pod)
	if !ok || r.Kind != history.Seen {
		delete(d.pods, o.GetUID())
		return
	}
	d.pods[pod.UID] = pod
	if end, was := d.ended[pod.UID]; was && !terminal(pod) {
		delete(d.ended, pod.UID)
		dropped := r
		dropped.Kind, dropped.Value, dropped.Base, dropped.Unknown = history.Dropped, end, d.alive[pod.UID], false
		d.s.recorder.Add(dropped)
	}
	if terminal(pod) {
		d.ended[pod.UID] = max(d.ended[pod.UID], r.Value)
	} else {
		d.alive[pod.UID] = r.Value
	}
	if r.Value > d.status[pod.UID] {
		d.status[pod.UID] = r.Value
		r.Kind, r.End, r.Node, r.Unknown = history.Put, r.At, d.edge.name, false
		d.s.recorder.Add(r)
	}
}

// allEnded reports whether the device's API shows the ends of all pods of containers that it is
// still to run.
func (d *device) allEnded(all []container) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return !slices.ContainsFunc(all, func(c container) bool {
		_, ended := d.ended[c.uid]
		return d.pods[c.uid] != nil && !ended
	})
}

// has reports whether the device is to run a pod.
func (d *device) has(uid types.UID) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.pods[uid] != nil
}

// have gives the pods that the device is to run.
func (d *device) have() (all []*corev1.Pod) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range d.pods {
		all = append(all, p)
	}
	return all
}

// running returns the running containers.
func (d *device) running() (all []container) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for uid, c := range d.runs {
		if d.pods[uid] != nil {
			all = append(all, c)
		}
	}
	return all
}

// changeReadiness makes kubelets write statuses, until work ends.
func (d *device) changeReadiness(work context.Context) {
	draw := d.s.draw("readiness of " + d.edge.name)
	for n := 0; work.Err() == nil; n++ {
		for _, p := range d.have() {
			if p.Status.PodIP != "" {
				_ = toggle(work, d.dial, p.Status.PodIP, n%2 == 1) // it may be ending
			}
		}
		pause(work, time.Duration(1000+draw.IntN(3000))*time.Millisecond)
	}
}

// id returns the uid of an object that a slot's pods refer to, which is made once.
func (d *device) id(ctx context.Context, resource, name string) string {
	if id, known := d.ids.Load(resource + name); known {
		return id.(string)
	}
	ctx, cancel := context.WithTimeout(ctx, requestPatience)
	defer cancel()
	var o metav1.Object
	var err error
	if resource == "configmaps" {
		o, err = d.s.client.CoreV1().ConfigMaps(namespace).Get(ctx, name, metav1.GetOptions{})
	} else {
		o, err = d.s.client.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
	}
	if err != nil {
		return ""
	}
	d.ids.Store(resource+name, string(o.GetUID()))
	return string(o.GetUID())
}

// volume reads the counter that a container finds in a volume.
func (d *device) volume(pod types.UID, resource string) (int64, error) {
	plugin := map[string]string{"configmaps": "kubernetes.io~configmap/config", "secrets": "kubernetes.io~secret/secret"}[resource]
	raw, err := os.ReadFile(filepath.Join(d.host.Load().Root(), "/var/lib/kubelet/pods", string(pod), "volumes", plugin, "n"))
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(string(bytes.TrimSpace(raw)), 10, 64)
}

// lookAtVolumes records the changes in the volumes of pods that are to run.
func (d *device) lookAtVolumes(ctx context.Context) {
	for _, p := range d.have() {
		for _, resource := range []string{"configmaps", "secrets"} {
			r := history.Record{Kind: history.Seen, Who: d.edge.name, Resource: resource, Name: namespace + "/" + p.Name, At: d.s.recorder.Now()}
			value, err := d.volume(p.UID, resource)
			if err != nil || strings.HasPrefix(p.Name, lost) {
				continue
			}
			place := string(p.UID) + resource
			if before, again := d.volumes[place]; again && before == value {
				continue
			}
			if r.Value, r.UID = value, d.id(ctx, resource, p.Name); r.UID != "" {
				d.volumes[place] = value
				d.s.recorder.Add(r)
			}
		}
	}
}

// lookAtContainers records which have started and which have ended. The events of one that has run
// for long enough, on a device that has not been disturbed since, have been reported.
func (d *device) lookAtContainers() {
	now, err := d.containers()
	if err != nil || d.off.Load() {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	recorder, who := d.s.recorder, d.edge.name+" "+containersOf
	there := map[types.UID]container{}
	for _, c := range now {
		there[c.uid] = c
		before, ran := d.runs[c.uid]
		if ran && before.pid == c.pid {
			there[c.uid] = before
			continue
		}
		if ran {
			recorder.Add(before.record(history.Gone, who))
		}
		recorder.Add(c.record(history.Seen, who))
		if !ran && d.broken == 0 && time.Since(d.whole) > settled {
			d.announced = append(d.announced, c)
		}
	}
	for uid, c := range d.runs {
		if _, runs := there[uid]; !runs {
			recorder.Add(c.record(history.Gone, who))
		}
	}
	d.runs = there
	for len(d.announced) > 0 && time.Since(d.announced[0].since) > settled {
		for n, reason := range startEvents {
			r := d.announced[0].record(history.Put, d.edge.name)
			r.Resource, r.About, r.UID, r.Value, r.Name = "events", r.UID, "", 1, startEvent(r.Name, r.UID, reason)
			r.At = recorder.Now() + time.Duration(n)
			r.End = r.At
			recorder.Add(r)
		}
		d.announced = d.announced[1:]
	}
}

// afterReboot takes the running containers for those from before: they ended only with the device.
func (d *device) afterReboot() {
	now, _ := d.containers() // else it is seen to have started
	d.mu.Lock()
	defer d.mu.Unlock()
	d.runs = map[types.UID]container{}
	for _, c := range now {
		d.runs[c.uid] = c
	}
	d.off.Store(false)
}

func (c container) record(kind history.Kind, who string) history.Record {
	return history.Record{Kind: kind, Who: who, Resource: "pods", Name: namespace + "/" + c.name, UID: string(c.uid)}
}

// finals reads the device's state: its API, the volumes, the running containers.
func (d *device) finals(ctx context.Context, cloud []corev1.Pod, add func(who, node, resource string, o metav1.Object, value int64)) error {
	shown, err := d.edge.pods(ctx)
	if err != nil {
		return err
	}
	add(d.edge.name, d.edge.name, "nodes", &metav1.ObjectMeta{Name: d.edge.name}, 0)
	for _, p := range shown {
		if p.Namespace != namespace {
			continue
		}
		add(d.edge.name, d.edge.name, "pods", &p, valueOf(&p))
		for _, resource := range []string{"configmaps", "secrets"} {
			if value, err := d.volume(p.UID, resource); err == nil && p.DeletionTimestamp == nil {
				add(d.edge.name, d.edge.name, resource, &metav1.ObjectMeta{Name: p.Name, UID: types.UID(d.id(ctx, resource, p.Name))}, value)
			}
		}
	}
	for _, p := range cloud {
		if p.Spec.NodeName == d.edge.name && p.DeletionTimestamp == nil {
			add(history.Cloud, d.edge.name, containersOf, &p, 0)
		}
	}
	running, err := d.containers()
	if err != nil {
		return err
	}
	for _, c := range running {
		add(d.edge.name, d.edge.name, containersOf, &metav1.ObjectMeta{Name: c.name, UID: c.uid}, 0)
	}
	return nil
}

// imageProgram is the name of the program in each of our images.
const imageProgram = "app"

// containers lists the processes of the sample application that run in the device's pods.
func (d *device) containers() (all []container, err error) {
	processes, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	for _, p := range processes {
		name, err := os.ReadFile(p + "/comm")
		if err != nil || strings.TrimSpace(string(name)) != imageProgram {
			continue // it has ended, or is not a container's
		}
		cgroup, err1 := os.ReadFile(p + "/cgroup")
		environment, err2 := os.ReadFile(p + "/environ")
		if err := errors.Join(err1, err2); err != nil {
			if errors.Is(err, fs.ErrNotExist) || strings.Contains(err.Error(), "no such process") {
				continue
			}
			return nil, fmt.Errorf("looking at a process: %w", err)
		}
		_, of, ours := strings.Cut(string(cgroup), "/"+d.cgroup+"/")
		_, below, inPod := strings.Cut(of, "/pod")
		uid, _, _ := strings.Cut(below, "/")
		_, pod, named := bytes.Cut(environment, []byte("POD_NAME="))
		pod, _, _ = bytes.Cut(pod, []byte{0})
		if pid, err := strconv.Atoi(filepath.Base(p)); err == nil && ours && inPod && named {
			all = append(all, container{name: string(pod), uid: types.UID(uid), pid: pid, since: time.Now()})
		}
	}
	return all, nil
}

// toggle asks the application in a pod to be ready, or not to be.
func toggle(ctx context.Context, dial func(context.Context, string, string) (net.Conn, error), ip string, ready bool) error {
	what := map[bool]string{true: "heal", false: "fail"}[ready]
	ctx, cancel := context.WithTimeout(ctx, requestPatience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+net.JoinHostPort(ip, "8080")+"/"+what, nil)
	if err != nil {
		return err
	}
	client := http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}
	response, err := client.Do(r)
	if err != nil {
		return err
	}
	return response.Body.Close()
}

package campaign

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/tests/campaign/history"
	"github.com/skerry-io/skerry/tests/cluster"
	"github.com/skerry-io/skerry/tests/cluster/faultproxy"
	"github.com/skerry-io/skerry/tests/cluster/host"
	"github.com/skerry-io/skerry/tests/cluster/lab"
	"github.com/skerry-io/skerry/tests/cluster/trial"
)

// Where programs of a trial have their things, as they see it.
const (
	planeDir            = "/var/lib/kubeplane"
	storeFile           = "/var/lib/skerry/store.db"
	cloudcoreKubeconfig = "/etc/skerry/cloudcore.kubeconfig"
	sampleImage         = "skerry.local/sample:1"
)

const (
	// rebootPatience is for a device's containers after a power cut, on a loaded machine.
	rebootPatience = 3 * time.Minute
	// recoveryPatience is how long after the reason has passed a pod may be missing that an orderly
	// shutdown or pressure has ended.
	recoveryPatience = time.Minute
	// pressurePatience is for a kubelet to notice that its disk is full, or has room again, and to
	// end its pods.
	pressurePatience = 2 * time.Minute
)

// onTrial replaces a campaign's own processes by those of a trial.
type onTrial struct {
	s        *system
	trial    *trial.Trial
	verbs    sync.Mutex // methods of a trial are called one at a time
	replicas []string
	devices  []*device // of the edges in their order

	mu   sync.Mutex
	busy map[string]bool // things that a step breaks now
}

// RealFaults are those that a campaign against a trial draws from.
func RealFaults() []Fault {
	return []Fault{KillCloud, PauseCloud, KillEdge, PauseEdge, KillRuntime, Reboot, Shutdown, Pressure, BadPage, Cut, Silent, Thin, Refuse, Deny, Down, Isolate, Lag, KillPlane, OlderCopy}
}

// Real is a campaign of that many minutes against a trial.
func Real(seed uint64, minutes int) Options {
	o := Long(seed, minutes)
	o.Edges, o.Pause, o.Bound, o.Faults = 2, 6*time.Second, 5*time.Minute, RealFaults()
	return o
}

// OnTrial runs a campaign against a trial that is up, with as many edges and cloudcores as the
// options have and without the sample application: the edges' kubelets run containers. The trial is
// of no use after it.
func OnTrial(ctx context.Context, o Options, t *trial.Trial) (Result, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ctx, end := context.WithCancel(ctx)
	s := &system{options: o, recorder: history.NewRecorder(), end: end}
	r := &onTrial{s: s, trial: t, replicas: trial.Options{Clouds: o.Clouds}.Replicas(), busy: map[string]bool{}}
	s.real = r
	defer s.stop()
	if err := r.start(ctx); err != nil {
		return Result{}, err
	}
	return s.run(ctx)
}

func (r *onTrial) start(ctx context.Context) error {
	admin, err := r.trial.Admin()
	if err != nil {
		return err
	}
	if r.s.client, err = kubernetes.NewForConfig(admin); err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	own, err := dynamic.NewForConfig(admin)
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	r.s.reported = map[string]dynamic.ResourceInterface{operations: own.Resource(v1alpha1.Resource(v1alpha1.NodeOperations))}
	_, err = r.s.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("making the namespace: %w", err)
	}
	for _, name := range r.replicas {
		if err := r.addCloud(ctx, name); err != nil {
			return err
		}
	}
	for n := range r.s.options.Edges {
		e := &edge{name: fmt.Sprintf("edge%d", n+1)}
		find := func() (host.Host, error) { return r.trial.Host(e.name) }
		d, err := newDevice(r.s, e, find, r.trial.Cgroup(e.name))
		if err != nil {
			return err
		}
		if e.client, err = d.connect(r.trial.EdgeKubeconfig()); err != nil {
			return err
		}
		e.device = d
		r.devices = append(r.devices, d)
		thing := Step{Fault: KillEdge, Target: n}.things()
		r.s.serve(ctx, func(ctx context.Context) error { return r.supervise(ctx, d, thing) })
		r.s.edges = append(r.s.edges, e)
	}
	return nil
}

// do calls a method of the trial.
func (r *onTrial) do(f func() error) error {
	r.verbs.Lock()
	defer r.verbs.Unlock()
	return f()
}

// path is where the machine has a file of a host.
func (r *onTrial) path(name, file string) (string, error) {
	h, err := r.trial.Host(name)
	if err != nil {
		return "", err
	}
	return filepath.Join(h.Root(), file), nil
}

// addCloud puts a fault proxy between a replica and kube-apiserver. It has the certificate of
// kube-apiserver, and stands at its address: to cloudcore it is kube-apiserver.
func (r *onTrial) addCloud(ctx context.Context, name string) error {
	pki, err := r.path(trial.Cloud, planeDir+"/pki")
	if err != nil {
		return err
	}
	pair, err := tls.LoadX509KeyPair(filepath.Join(pki, "apiserver.crt"), filepath.Join(pki, "apiserver.key"))
	if err != nil {
		return fmt.Errorf("reading the certificate of kube-apiserver: %w", err)
	}
	authority, err := os.ReadFile(filepath.Join(pki, "ca.crt"))
	if err != nil {
		return fmt.Errorf("reading the CA of kube-apiserver: %w", err)
	}
	cloud, err := r.trial.Host(trial.Cloud)
	if err != nil {
		return err
	}
	server := net.JoinHostPort(lab.Cloud().String(), "6443")
	c := &cloudcore{}
	if c.proxy, err = faultproxy.New(&url.URL{Scheme: "https", Host: server}, authority, cloud.Dial); err != nil {
		return err
	}
	var l net.Listener
	if err := cloud.Do(func() (err error) {
		l, err = net.Listen("tcp", net.JoinHostPort(lab.Cloud().String(), "0"))
		return err
	}); err != nil {
		return fmt.Errorf("listening for the proxy: %w", err)
	}
	r.s.serve(ctx, func(ctx context.Context) error { return c.proxy.Serve(ctx, l, pair) })
	file, err := r.path(name, cloudcoreKubeconfig)
	if err != nil {
		return err
	}
	config, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("reading cloudcore's kubeconfig: %w", err)
	}
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(string(config), server, l.Addr().String())), 0o600); err != nil {
		return fmt.Errorf("writing cloudcore's kubeconfig: %w", err)
	}
	c.decide(nil)
	r.s.clouds = append(r.s.clouds, c)
	r.s.serve(ctx, func(ctx context.Context) error { return r.s.countWatches(ctx, c, name) })
	return r.do(func() error {
		return errors.Join(r.trial.Stop(ctx, name, "cloudcore"), r.trial.Start(ctx, name, "cloudcore"))
	})
}

// fit makes a pod one that runs: the sample application, with a probe that controls when its
// readiness changes, and the objects that it refers to as volumes, which follow the objects.
func (r *onTrial) fit(pod *corev1.Pod) {
	c := &pod.Spec.Containers[0]
	pod.Spec.TerminationGracePeriodSeconds = new(int64(1))
	c.Image, c.EnvFrom = sampleImage, nil
	c.Env = []corev1.EnvVar{{Name: "POD_NAME", Value: pod.Name}}
	probe := corev1.Probe{PeriodSeconds: 1, FailureThreshold: 1, SuccessThreshold: 1}
	probe.HTTPGet = &corev1.HTTPGetAction{Path: "/healthz"}
	probe.HTTPGet.Port.IntVal = 8080
	c.ReadinessProbe = &probe
	if strings.HasPrefix(pod.Name, lost) {
		return // there are no objects that it could refer to
	}
	config, secret := corev1.Volume{Name: "config"}, corev1.Volume{Name: "secret"}
	config.ConfigMap = &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: pod.Name}}
	secret.Secret = &corev1.SecretVolumeSource{SecretName: pod.Name}
	pod.Spec.Volumes = []corev1.Volume{config, secret}
	c.VolumeMounts = []corev1.VolumeMount{{Name: "config", MountPath: "/config"}, {Name: "secret", MountPath: "/secret"}}
}

// supervise starts an edgecore again that ends by itself, as an init system does, until ctx ends:
// one ends where it met damage in its store, at a good moment.
func (r *onTrial) supervise(ctx context.Context, d *device, thing []string) error {
	for ; ctx.Err() == nil; pause(ctx, 2*time.Second) {
		if !r.claim(thing) {
			continue // it is down for a step
		}
		if r.do(func() error { return r.trial.Signal(ctx, d.edge.name, "edgecore", 0) }) != nil && ctx.Err() == nil {
			over := d.disturb()
			_ = r.do(func() error { return r.trial.Start(ctx, d.edge.name, "edgecore") }) // retried by the next pass
			over()
		}
		r.release(thing)
	}
	return nil
}

// claim takes things for a step. It takes no thing where one is still being repaired, which takes
// longer than planned on a slow machine.
func (r *onTrial) claim(things []string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if slices.ContainsFunc(things, func(thing string) bool { return r.busy[thing] }) {
		return false
	}
	for _, thing := range things {
		r.busy[thing] = true
	}
	return true
}

func (r *onTrial) release(things []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, thing := range things {
		delete(r.busy, thing)
	}
}

// break1 breaks the parts that only a trial has, or has otherwise; false leaves it to the system. A
// step whose things are still being repaired is left out.
func (r *onTrial) break1(ctx context.Context, step Step) (bool, error) {
	if slices.Contains([]Fault{Refuse, Deny, Down, Isolate, Lag}, step.Fault) {
		return false, nil
	}
	things := step.things()
	claimed := r.claim(things)
	for ; !claimed && len(r.s.options.Steps) > 0 && ctx.Err() == nil; claimed = r.claim(things) {
		pause(ctx, 500*time.Millisecond)
	}
	if !claimed {
		return true, nil
	}
	defer r.release(things)
	return true, r.breakOwn(ctx, step)
}

// breakOwn breaks and repairs.
func (r *onTrial) breakOwn(ctx context.Context, step Step) error {
	if slices.Contains([]Fault{KillCloud, PauseCloud}, step.Fault) {
		replica := r.replicas[step.Target]
		if step.Fault == PauseCloud {
			return r.stand(ctx, replica, "cloudcore", step.For)
		}
		return r.restart(ctx, replica, "cloudcore", step.For, nil)
	}
	switch step.Fault {
	case KillPlane:
		return r.restart(ctx, trial.Cloud, "kubeplane", step.For, nil)
	case OlderCopy:
		return r.goBack(ctx, step.For)
	}
	e, d := r.s.edges[step.Target], r.devices[step.Target]
	switch step.Fault {
	case Cut, Silent:
		how := map[Fault]lab.Cut{Cut: lab.Carrier, Silent: lab.Silent}[step.Fault]
		err := r.do(func() error { return r.trial.Cut(ctx, e.name, how) })
		pause(ctx, step.For)
		return errors.Join(err, r.do(func() error { return r.trial.Heal(ctx, e.name) }))
	case Thin:
		err := r.do(func() error { return r.trial.Shape(ctx, e.name, lab.Shape{Rate: 8 * 4 << 10}) })
		pause(ctx, step.For)
		return errors.Join(err, r.do(func() error { return r.trial.Shape(ctx, e.name, lab.Shape{}) }))
	case KillRuntime:
		defer d.disturb()()
		return r.restart(ctx, e.name, "containerd", step.For, nil)
	case Reboot:
		defer d.disturb()()
		return r.reboot(ctx, d, step.For, true, rebootPatience, r.trial.Reboot)
	case Shutdown:
		defer d.disturb()()
		return r.reboot(ctx, d, step.For, step.offline(), recoveryPatience, r.trial.RebootOrderly)
	case Pressure:
		defer d.disturb()()
		return r.pressure(ctx, d, step.For)
	case PauseEdge:
		defer d.disturb()()
		return r.stand(ctx, e.name, "edgecore", step.For)
	case KillEdge, BadPage:
		defer d.disturb()()
		var down func() error
		if step.Fault == BadPage {
			defer r.s.excuse(history.Damage, e.name)()
			down = func() error {
				file, err := r.path(e.name, storeFile)
				if err != nil {
					return err
				}
				return flip(file)
			}
		}
		return r.restart(ctx, e.name, "edgecore", step.For, down)
	}
	return fmt.Errorf("a trial has no fault %s", step.Fault)
}

// restart kills a program, unless it has ended by itself, and starts it again; down, which may be
// nil, is called in between.
func (r *onTrial) restart(ctx context.Context, on, program string, after time.Duration, down func() error) error {
	err := r.do(func() error {
		if r.trial.Signal(ctx, on, program, 0) != nil {
			return nil
		}
		return r.trial.Kill(ctx, on, program)
	})
	if err == nil && down != nil {
		err = down()
	}
	pause(ctx, after)
	return errors.Join(err, r.do(func() error { return r.trial.Start(ctx, on, program) }))
}

func (r *onTrial) stand(ctx context.Context, on, program string, length time.Duration) error {
	if r.do(func() error { return r.trial.Signal(ctx, on, program, syscall.SIGSTOP) }) != nil {
		return nil // it has ended by itself, and is started again
	}
	pause(ctx, length)
	return r.do(func() error { return r.trial.Signal(ctx, on, program, syscall.SIGCONT) })
}

// expect returns the containers that a device runs without a request to end them, which it will end
// by itself; offline cuts its link first.
func (r *onTrial) expect(ctx context.Context, d *device, offline bool) ([]container, error) {
	if offline {
		if err := r.do(func() error { return r.trial.Cut(ctx, d.edge.name, lab.Carrier) }); err != nil {
			return nil, err
		}
		pause(ctx, 3*time.Second) // messages in flight have arrived, and containers being ended have ended
	}
	before := d.running()
	d.off.Store(true)
	return before, nil
}

// reboot boots a device. All pods that it ran must run again; where it is offline, before it has a
// link.
func (r *onTrial) reboot(ctx context.Context, d *device, length time.Duration, offline bool, patience time.Duration, boot func(ctx context.Context, name string, offline bool) error) error {
	before, err := r.expect(ctx, d, offline)
	if err != nil {
		return err
	}
	if err := r.do(func() error { return boot(ctx, d.edge.name, offline) }); err != nil {
		return err
	}
	if err := d.enter(); err != nil {
		return err
	}
	if err := r.awaitAgain(ctx, d, before, patience); err != nil {
		return err
	}
	pause(ctx, length)
	return r.do(func() error { return r.trial.Heal(ctx, d.edge.name) })
}

// pressure makes the kubelet of a device without a link take its disk for full, until it has ended
// all its pods. Once the kubelet has found room again they must run again, before there is a link.
// No file fills the disk: it is the machine's, and others look at it.
func (r *onTrial) pressure(ctx context.Context, d *device, length time.Duration) error {
	// Else there is no container to end.
	if err := within(ctx, pressurePatience, func() (bool, error) { return len(d.running()) > 0, nil }); err != nil {
		return fmt.Errorf("%s runs no pod: %w", d.edge.name, err)
	}
	before, err := r.expect(ctx, d, true)
	if err != nil {
		return err
	}
	evictBelow := func(nodefs string) error {
		return r.do(func() error {
			return r.trial.Set(ctx, d.edge.name, []string{`modules.edged.kubelet.evictionHard={"memory.available":"100Mi","nodefs.available":"` + nodefs + `"}`})
		})
	}
	if err := evictBelow("99%"); err != nil {
		return err
	}
	if err := within(ctx, pressurePatience, func() (bool, error) { return d.allEnded(before), nil }); err != nil {
		return fmt.Errorf("%s has not ended its pods for its full disk: %w", d.edge.name, err)
	}
	pause(ctx, length)
	if err := evictBelow("1%"); err != nil {
		return err
	}
	err = within(ctx, pressurePatience, func() (bool, error) {
		node, err := d.edge.client.CoreV1().Nodes().Get(ctx, d.edge.name, metav1.GetOptions{})
		return err == nil && !slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeDiskPressure && c.Status != corev1.ConditionFalse
		}), nil
	})
	if err != nil {
		return fmt.Errorf("%s has not noticed that it has room: %w", d.edge.name, err)
	}
	if err := r.awaitAgain(ctx, d, before, recoveryPatience); err != nil {
		return err
	}
	return r.do(func() error { return r.trial.Heal(ctx, d.edge.name) })
}

// within asks until the answer is yes.
func within(ctx context.Context, patience time.Duration, ask func() (bool, error)) error {
	for end := time.Now().Add(patience); ctx.Err() == nil; pause(ctx, 500*time.Millisecond) {
		yes, err := ask()
		switch {
		case err != nil || yes:
			return err
		case time.Now().After(end):
			return fmt.Errorf("after %v", patience)
		}
	}
	return context.Cause(ctx)
}

// awaitAgain records which containers don't run again in time.
func (r *onTrial) awaitAgain(ctx context.Context, d *device, before []container, patience time.Duration) error {
	missing := slices.Clone(before)
	for end := time.Now().Add(patience); len(missing) > 0 && time.Now().Before(end) && ctx.Err() == nil; pause(ctx, 500*time.Millisecond) {
		now, err := d.containers()
		if err != nil {
			return err
		}
		missing = slices.DeleteFunc(missing, func(c container) bool {
			return !d.has(c.uid) || slices.ContainsFunc(now, func(again container) bool { return again.uid == c.uid })
		})
	}
	for _, c := range missing {
		r.s.recorder.Add(c.record(history.Missing, d.edge.name))
	}
	d.afterReboot()
	return nil
}

// goBack is the system's, of a trial's control plane.
func (r *onTrial) goBack(ctx context.Context, after time.Duration) error {
	dir, err := r.path(trial.Cloud, planeDir)
	if err != nil {
		return err
	}
	over := r.s.excuse(history.Restore, history.Cloud)
	if err := r.do(func() error { return r.trial.Stop(ctx, trial.Cloud, "kubeplane") }); err != nil {
		return err
	}
	b, err := cluster.CopyEtcd(dir)
	if err = errors.Join(err, r.do(func() error { return r.trial.Start(ctx, trial.Cloud, "kubeplane") })); err != nil {
		return err
	}
	r.s.makeLost(ctx, r.s.edges)
	err = r.restart(ctx, trial.Cloud, "kubeplane", after, func() error { return cluster.PutEtcd(dir, b) })
	over()
	return errors.Join(err, cluster.RemoveBackup(b))
}

package site_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/skerry-io/skerry/tests/cluster/host"
	"github.com/skerry-io/skerry/tests/cluster/process"
	"github.com/skerry-io/skerry/tests/cluster/trial"
)

// ownPods are the ready pods of a device by its own API, with the cloud and without it: those that
// were restarted as often (below ten times). After a reboot the API has the state from before it
// until the kubelet reports.
func (s *system) ownPods(ctx context.Context, node, namespace, app string, restarts int) (map[string]string, error) {
	out, err := s.TryEdgeKubectl(ctx, node, "get", "pods", "-n", namespace, "-l", "app="+app,
		"-o", `jsonpath={range .items[*]}{.metadata.name} {.status.podIP} {.status.conditions[?(@.type=="Ready")].status} {.status.containerStatuses[0].restartCount}{"\n"}{end}`)
	if err != nil {
		return nil, err
	}
	all := map[string]string{}
	for line := range strings.Lines(out) {
		if f := strings.Fields(line); len(f) == 4 && f[2] == "True" && f[3] >= strconv.Itoa(restarts) {
			all[f[0]] = f[1]
		}
	}
	return all, nil
}

// A power cut while the cloud is away: pods come back with other addresses, which can't be reported
// to the cloud. Service and headless name follow.
func TestSite_03_RebootOfflineServiceAndNameFollow(t *testing.T) {
	s := newSystem(t)
	ns := s.Namespace()
	// Addresses are given in turn and again with each boot. These take the first ones and go before
	// it: no pod gets the address then that it had.
	s.Apply(ns, deployment("first", "edge1", 4))
	s.WaitPods(ns, "app=first", "edge1", 4)
	s.Apply(ns, deployment("front", "edge1", 1)+deployment("store", "edge1", 2)+service("store", "store", "")+service("each", "store", "  clusterIP: None"))
	s.WaitPods(ns, "app=front", "edge1", 1)
	pods := s.WaitPods(ns, "app=store", "edge1", 2)
	before := []string{pods[0].Status.PodIP, pods[1].Status.PodIP}
	s.Kubectl("delete", "deployment", "first", "-n", ns)
	s.WaitPods(ns, "app=first", "edge1", 0)
	s.WaitFor("the headless name", func(ctx context.Context) error {
		return s.lookUp(ctx, "edge1", "each."+ns+".svc.cluster.local.", before)
	})
	s.Cut("edge1")
	s.WaitReady("edge1", false)
	s.WaitFor("the device to have no other pods", func(ctx context.Context) error {
		all, err := s.ownPods(ctx, "edge1", ns, "first", 0)
		if err == nil && len(all) > 0 {
			err = fmt.Errorf("it has %v", all)
		}
		return err
	})
	s.Reboot("edge1", true)
	var now map[string]string
	s.WaitFor("the pods, after the reboot", func(ctx context.Context) error {
		var err error
		if now, err = s.ownPods(ctx, "edge1", ns, "store", 1); err == nil && len(now) != 2 {
			err = fmt.Errorf("%v are ready", now)
		}
		return err
	})
	addresses := slices.Collect(maps.Values(now))
	for _, a := range addresses {
		if slices.Contains(before, a) {
			t.Fatalf("a pod has the address that it had: %v, before %v; the test shows nothing", addresses, before)
		}
	}
	s.WaitFor("the headless name, with the addresses of this boot", func(ctx context.Context) error {
		return s.lookUp(ctx, "edge1", "each."+ns+".svc.cluster.local.", addresses)
	})
	var front string
	s.WaitFor("the front, after the reboot", func(ctx context.Context) error {
		all, err := s.ownPods(ctx, "edge1", ns, "front", 1)
		for _, front = range all {
			return nil
		}
		return errors.Join(err, errors.New("it is not ready"))
	})
	s.waitAnswers("both pods by name, after the reboot", 20, slices.Collect(maps.Keys(now)), func(ctx context.Context) (string, error) {
		return s.fetch(ctx, "edge1", front, "http://store/name")
	})
	s.Heal("edge1")
	s.WaitReady("edge1", true)
}

// rules reports whether rules of Services are in a device's kernel.
func (s *system) rules(ctx context.Context, node string) (bool, error) {
	var out strings.Builder
	code, err := s.Trial.Exec(ctx, node, trial.Streams{Out: &out, Err: &out}, nil, "nft", "list", "tables")
	if err == nil && code != 0 {
		err = errors.New(out.String())
	}
	return strings.Contains(out.String(), "table ip kube-proxy"), err
}

const kubeProxy = `apiVersion: v1
kind: Pod
metadata: {name: kube-proxy-x, labels: {k8s-app: kube-proxy}}
spec:
  hostNetwork: true
  terminationGracePeriodSeconds: 1
  nodeName: edge1
  tolerations: [{operator: Exists}]
  containers:
  - {name: kube-proxy, image: "skerry.local/sample:1", imagePullPolicy: IfNotPresent, env: [{name: LISTEN, value: "127.0.0.1:18080"}]}
`

// A kube-proxy pod comes to the device, as a DaemonSet brings it: edgecore's rules make room, it
// stays off after that, reports it, and comes back when the pod has gone. The pod is one by its
// label and container; its rules in the kernel are not tested here.
func TestSite_29_KubeProxyThereKeepsOursOff(t *testing.T) {
	s := newSystem(t)
	ns := s.Namespace()
	s.Apply(ns, deployment("store", "edge1", 1)+service("store", "store", ""))
	pod := s.WaitPods(ns, "app=store", "edge1", 1)[0]
	served := func(ctx context.Context) (string, error) {
		return s.getFrom(ctx, "edge1", "http://"+s.service(ns, "store").Spec.ClusterIP+"/name")
	}
	s.waitAnswers("the Service", 3, []string{pod.Name}, served)
	status := func(ctx context.Context) string {
		var out strings.Builder
		_, err := s.Trial.Exec(ctx, "edge1", trial.Streams{Out: &out, Err: io.Discard}, nil, filepath.Join(s.Root, "bin", "edgecore"), "status", "-o", "json")
		s.Check(err)
		return out.String()
	}
	s.Apply(ns, kubeProxy)
	s.WaitFor("the rules to make room, and edgecore to say so", func(ctx context.Context) error {
		there, err := s.rules(ctx, "edge1")
		if err != nil || there {
			return errors.Join(err, errors.New("rules are there"))
		}
		_ = s.Trial.Start(ctx, "edge1", "edgecore") // as systemd does; it may run already
		if text := status(ctx); !strings.Contains(text, "off: the pod "+ns+"/kube-proxy-x") {
			return errors.New("it does not say so")
		}
		return nil
	})
	if there, err := s.rules(t.Context(), "edge1"); err != nil || there {
		t.Errorf("rules are there beside a kube-proxy pod: %v", err)
	}
	s.Kubectl("delete", "pod", "kube-proxy-x", "-n", ns)
	s.waitAnswers("the Service, once the pod has gone", 3, []string{pod.Name}, served)
	if text := status(t.Context()); strings.Contains(text, "off: the pod") {
		t.Error("it still says that it is off")
	}
}

// sockets opens the sockets of names on a device, as systemd does from a socket unit.
func (s *system) sockets(h host.Host) []*os.File {
	s.T.Helper()
	var files []*os.File
	s.Check(h.Do(func() error {
		config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
			return c.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_FREEBIND, 1) })
		}}
		udp, err := config.ListenPacket(s.T.Context(), "udp", nameServer)
		if err != nil {
			return err
		}
		defer udp.Close()
		tcp, err := config.Listen(s.T.Context(), "tcp", nameServer)
		if err != nil {
			return err
		}
		defer tcp.Close()
		for _, f := range []func() (*os.File, error){udp.(*net.UDPConn).File, tcp.(*net.TCPListener).File} {
			file, err := f()
			if err != nil {
				return err
			}
			files = append(files, file)
		}
		return nil
	}))
	s.T.Cleanup(func() {
		for _, f := range files {
			_ = f.Close()
		}
	})
	return files
}

// edgecore is stopped and started again under a stream of queries, each of which is sent once, with
// its sockets from outside: each is answered, and rightly.
func TestSite_22_RestartLosesNoQuery(t *testing.T) {
	s := newSystem(t)
	ns := s.Namespace()
	s.Apply(ns, service("store", "none", ""))
	ip := s.service(ns, "store").Spec.ClusterIP
	h, err := s.Trial.Host("edge1")
	s.Check(err)
	s.Check(s.Trial.Stop(t.Context(), "edge1", "edgecore"))
	files := s.sockets(h)
	start := func() *process.Started {
		t.Helper()
		// LISTEN_PID is the program's own number (sd_listen_fds(3)), which the shell has before it
		// becomes the program.
		script := "LISTEN_PID=$$ LISTEN_FDS=2 exec " + filepath.Join(s.Root, "bin", "edgecore") + " --config /etc/skerry/edgecore.yaml"
		p, err := h.Start(process.Spec{Path: "/bin/sh", Args: []string{"-c", script}, Dir: "/", Log: s.Trial.LogPath("edge1", "edgecore"), Files: files})
		s.Check(err)
		return p
	}
	p := start()
	defer func() { _ = p.Kill(context.Background()) }()
	name := "store." + ns + ".svc.cluster.local."
	s.WaitFor("the name", func(ctx context.Context) error { return s.lookUp(ctx, "edge1", name, []string{ip}) })

	var sent, answered atomic.Int64
	var asking sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for range 4 {
		asking.Go(func() {
			for ctx.Err() == nil {
				sent.Add(1)
				r, err := s.queryOnce(h, name)
				switch {
				case err != nil:
					t.Errorf("a query was lost: %v", err)
				case r.Rcode != dns.RcodeSuccess || len(r.Answer) != 1:
					t.Errorf("a wrong answer: %v", r)
				default:
					answered.Add(1)
				}
				time.Sleep(5 * time.Millisecond)
			}
		})
	}
	for range 2 {
		before := answered.Load()
		s.Check(syscall.Kill(p.PID, syscall.SIGTERM))
		<-p.Done()
		p = start()
		s.WaitFor("answers again", func(ctx context.Context) error {
			if answered.Load() < before+50 {
				return fmt.Errorf("%d queries were answered", answered.Load()-before)
			}
			return s.lookUp(ctx, "edge1", name, []string{ip})
		})
	}
	cancel()
	asking.Wait()
	t.Logf("%d queries, %d answered", sent.Load(), answered.Load())
	if sent.Load() != answered.Load() {
		t.Errorf("%d queries, %d answers", sent.Load(), answered.Load())
	}
	s.Check(syscall.Kill(p.PID, syscall.SIGTERM))
	<-p.Done()
	for _, f := range files {
		_ = f.Close()
	}
}

// queryOnce sends one datagram and waits for its answer.
func (s *system) queryOnce(h host.Host, name string) (*dns.Msg, error) {
	conn, err := h.Dial(context.Background(), "udp", nameServer)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	c := &dns.Client{Timeout: time.Minute}
	r, _, err := c.ExchangeWithConn(new(dns.Msg).SetQuestion(name, dns.TypeA), &dns.Conn{Conn: conn})
	return r, err
}

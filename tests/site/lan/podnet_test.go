package lan_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/skerry-io/skerry/tests/cluster/lab"
	"github.com/skerry-io/skerry/tests/cluster/trial"
)

const namespace = "default"

// pod makes a sample pod on a node and waits until it is Ready.
func (s *system) pod(name, node string, edit ...func(*corev1.Pod)) corev1.Pod {
	s.T.Helper()
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, Labels: map[string]string{"app": "web", "name": name}},
		Spec: corev1.PodSpec{
			NodeName: node, TerminationGracePeriodSeconds: ptr(int64(1)),
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}}, // the cloud does not evict them: the test does
			Containers: []corev1.Container{{
				Name: "web", Image: "skerry.local/sample:1", ImagePullPolicy: corev1.PullNever,
				ReadinessProbe: &corev1.Probe{
					ProbeHandler:  corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/healthz", Port: intstr.FromInt32(8080)}},
					PeriodSeconds: 1, FailureThreshold: 1,
				},
			}},
		},
	}
	for _, f := range edit {
		f(p)
	}
	pods := s.Client.CoreV1().Pods(namespace)
	_, err := pods.Create(s.T.Context(), p, metav1.CreateOptions{})
	s.Check(err)
	s.T.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		_ = pods.Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: ptr(int64(0))})
	})
	var ready corev1.Pod
	s.WaitFor("pod "+name+" to be Ready", func(ctx context.Context) error {
		now, err := pods.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range now.Status.Conditions {
			if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
				ready = *now
				return nil
			}
		}
		return fmt.Errorf("it is %s", now.Status.Phase)
	})
	return ready
}

func ptr[T any](v T) *T { return &v }

// in runs a line of shell in the network of a pod, with the host's own programs.
func (s *system) in(p corev1.Pod, line string) string {
	s.T.Helper()
	return s.Must(s.tryIn(s.T.Context(), p, line))
}

func (s *system) tryIn(ctx context.Context, p corev1.Pod, line string) (string, error) {
	return s.shell(ctx, p.Spec.NodeName, `pid=$(`+findProcess(p)+`); [ -n "$pid" ] || { echo "no process has `+p.Status.PodIP+`" >&2; exit 9; }; nsenter --net=/proc/$pid/ns/net sh -c `+quote(line))
}

func quote(line string) string { return "'" + strings.ReplaceAll(line, "'", `'\''`) + "'" }

// shell runs a line on a host.
func (s *system) shell(ctx context.Context, host, line string) (string, error) {
	var out, errs bytes.Buffer
	code, err := s.Trial.Exec(ctx, host, trial.Streams{Out: &out, Err: &errs}, nil, "sh", "-c", line)
	if err == nil && code != 0 {
		err = fmt.Errorf("%s: exit code %d: %s", line, code, errs.String())
	}
	return out.String(), err
}

// datagram sends one of a size from a pod to another, which must not be cut into pieces, and one
// byte more is too much.
func (s *system) datagram(from, to corev1.Pod, size int) {
	s.T.Helper()
	var server *net.UDPConn
	s.Check(s.inPod(to, func() (err error) {
		server, err = net.ListenUDP("udp4", &net.UDPAddr{Port: 9})
		return err
	}))
	defer server.Close()
	var client *net.UDPConn
	s.Check(s.inPod(from, func() (err error) {
		client, err = net.DialUDP("udp4", nil, &net.UDPAddr{IP: net.ParseIP(to.Status.PodIP), Port: 9})
		return err
	}))
	defer client.Close()
	raw, err := client.SyscallConn()
	s.Check(err)
	s.Check(raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO)
	}))
	s.Check(err)
	if _, err := client.Write(make([]byte, size+1)); !errors.Is(err, unix.EMSGSIZE) {
		s.T.Errorf("a packet larger than the LAN's: %v", err)
	}
	buffer := make([]byte, 2*size)
	s.WaitFor("a packet as large as the LAN's to arrive", func(context.Context) error {
		if _, err := client.Write(make([]byte, size)); err != nil {
			return err
		}
		if err := server.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
			return err
		}
		n, _, err := server.ReadFromUDP(buffer)
		if err == nil && n != size {
			err = fmt.Errorf("%d bytes came, want %d", n, size)
		}
		return err
	})
}

// inPod runs f on a thread in the network of a pod: sockets that f opens are the pod's.
func (s *system) inPod(p corev1.Pod, f func() error) error {
	s.T.Helper()
	pid := strings.TrimSpace(s.Must(s.shell(s.T.Context(), p.Spec.NodeName, findProcess(p))))
	h, err := s.Trial.Host(p.Spec.NodeName)
	if err != nil {
		return err
	}
	return h.Do(func() error { // the thread ends with it
		ns, err := os.Open("/proc/" + pid + "/ns/net")
		if err != nil {
			return err
		}
		defer ns.Close()
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			return err
		}
		return f()
	})
}

// findProcess is a line of shell that prints a process of the pod: the one that has its address.
func findProcess(p corev1.Pod) string {
	return `for pid in $(ls /proc | grep '^[0-9]*$'); do nsenter --net=/proc/$pid/ns/net ip -o address 2>/dev/null | grep eth0 | grep -q ' ` + p.Status.PodIP + `/' && { echo $pid; break; }; done`
}

// condition is the Node's condition of the pod network.
func (s *system) condition(ctx context.Context, node string) (corev1.NodeCondition, error) {
	n, err := s.Client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	if err != nil {
		return corev1.NodeCondition{}, err
	}
	for _, c := range n.Status.Conditions {
		if c.Type == "SkerryPodNetwork" {
			return c, nil
		}
	}
	return corev1.NodeCondition{}, fmt.Errorf("node %s says nothing of its pod network", node)
}

// Pods of two devices reach each other with their own addresses and with packets as large as the
// LAN's, with the cloud and without it; packets that leave the site have the device's address.
func TestSite_23_PodToPodKeepsSourceAndMTU(t *testing.T) {
	s := newSystem(t)
	a, b := s.pod("from", "edge1"), s.pod("to", "edge2")
	for pod, n := range map[*corev1.Pod]int{&a: 1, &b: 2} {
		node, err := s.Client.CoreV1().Nodes().Get(t.Context(), pod.Spec.NodeName, metav1.GetOptions{})
		s.Check(err)
		if r := netip.MustParsePrefix(node.Spec.PodCIDR); !r.Contains(netip.MustParseAddr(pod.Status.PodIP)) {
			t.Errorf("edge%d: pod %s is not in %s", n, pod.Status.PodIP, r)
		}
	}
	check := func(when string) {
		t.Helper()
		s.WaitFor(when+": the pod on edge2 to answer one on edge1", func(ctx context.Context) error {
			_, err := s.tryIn(ctx, a, "curl -sf -m 3 http://"+b.Status.PodIP+":8080/healthz")
			return err
		})
		// 1472 bytes and 28 of headers are the LAN's 1500, not to be cut into pieces.
		s.datagram(a, b, 1472)
		// The other end sees the pod's own address.
		s.in(a, "curl -sf -m 3 http://"+b.Status.PodIP+":8080/healthz")
		out, err := s.shell(t.Context(), "edge2", "conntrack -L -p tcp --orig-dst "+b.Status.PodIP+" 2>/dev/null")
		if s.Check(err); !strings.Contains(out, "src="+a.Status.PodIP+" ") {
			t.Errorf("%s: edge2 does not see %s: %s", when, a.Status.PodIP, out)
		}
	}
	check("with the cloud")
	s.Cut("edge1")
	s.Cut("edge2")
	check("without the cloud")
	s.Heal("edge1")
	s.Heal("edge2")
	// The LAN's client is in no site: it sees the device, not the pod.
	client, err := s.Trial.Host(trial.Client)
	s.Check(err)
	var l net.Listener
	s.Check(client.Do(func() (err error) { l, err = net.Listen("tcp4", lab.Client().Addr().String()+":8099"); return err }))
	defer l.Close()
	from := make(chan string, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			from <- err.Error()
			return
		}
		from <- c.RemoteAddr().String()
		c.Close()
	}()
	_, _ = s.tryIn(t.Context(), a, "curl -s -m 5 http://"+lab.Client().Addr().String()+":8099/")
	select {
	case got := <-from:
		if want := lab.LAN(1).Addr().String() + ":"; !strings.HasPrefix(got, want) {
			t.Errorf("outside of the site the pod is seen as %s, want %s", got, want)
		}
	case <-time.After(time.Minute):
		t.Error("the pod does not reach the LAN's client")
	}
}

// Next to a foreign CNI configuration ours is absent, and the Node reports that; when it goes, ours
// comes back.
func TestSite_25_ForeignCNIIsLeftAlone(t *testing.T) {
	s := newSystem(t)
	h, err := s.Trial.Host("edge3")
	s.Check(err)
	dir := filepath.Join(h.Root(), "/etc/cni/net.d")
	own, foreign := filepath.Join(dir, "10-skerry.conflist"), filepath.Join(dir, "05-other.conflist")
	before, err := os.ReadFile(own)
	s.Check(err)
	s.Check(os.WriteFile(foreign, bytes.ReplaceAll(before, []byte(`"skerry"`), []byte(`"other"`)), 0o644))
	defer os.Remove(foreign)
	reason := func(want string) {
		t.Helper()
		s.WaitFor("edge3 to say "+want, func(ctx context.Context) error {
			c, err := s.condition(ctx, "edge3")
			if err == nil && c.Reason != want {
				err = fmt.Errorf("it says %s: %s", c.Reason, c.Message)
			}
			return err
		})
	}
	reason("Foreign")
	s.WaitFor("our file and our routes to go", func(ctx context.Context) error {
		if _, err := os.Stat(own); err == nil {
			return fmt.Errorf("%s is there", own)
		}
		out, err := s.shell(ctx, "edge3", "ip route show proto 159; nft list tables | grep skerry-pods || true")
		if err == nil && strings.TrimSpace(out) != "" {
			err = fmt.Errorf("%s", out)
		}
		return err
	})
	if have, err := os.ReadFile(foreign); err != nil || !bytes.Contains(have, []byte(`"other"`)) {
		t.Errorf("the other's file was touched: %v %s", err, have)
	}
	s.Check(os.Remove(foreign))
	reason("Ready")
	s.WaitFor("our file to come back", func(context.Context) error {
		after, err := os.ReadFile(own)
		if err == nil && !bytes.Equal(before, after) {
			err = fmt.Errorf("it is another: %s", after)
		}
		return err
	})
}

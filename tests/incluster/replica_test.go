package incluster_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/tests/cluster/suite"
	"github.com/skerry-io/skerry/tests/cluster/trial"
)

// leader is the holder of the Lease of cloudcore's controllers.
func (s *system) leader(ctx context.Context) (string, error) {
	l, err := s.Client.CoordinationV1().Leases(systemNamespace).Get(ctx, "cloudcore", metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	if l.Spec.HolderIdentity == nil || *l.Spec.HolderIdentity == "" {
		return "", errors.New("the Lease has no holder")
	}
	return *l.Spec.HolderIdentity, nil
}

// waitLeader waits for a leader that runs, other than one that is known, and returns its pod.
func (s *system) waitLeader(not string) (identity string, pod corev1.Pod) {
	s.T.Helper()
	s.WaitFor("a leader of cloudcore other than "+not, func(ctx context.Context) (err error) {
		if identity, err = s.leader(ctx); err != nil {
			return err
		}
		if identity == not {
			return errors.New("it holds the Lease still")
		}
		pods, err := s.pods(ctx)
		if err != nil {
			return err
		}
		for name, p := range pods {
			if strings.HasPrefix(identity, name+"-") {
				pod = p
				return nil
			}
		}
		return fmt.Errorf("%s is none of the pods that run", identity)
	})
	return identity, pod
}

// leads waits until the leader's controllers have worked: the status of a new StaticRoute
// is theirs.
func (s *system) leads(name string) {
	s.T.Helper()
	s.Apply("default", "apiVersion: skerry.io/v1alpha1\nkind: StaticRoute\nmetadata: {name: "+name+"}\nspec: {subnet: 172.20.0.0/16, gateway: 192.168.100.200}\n")
	s.T.Cleanup(func() {
		ctx := context.Background()
		s.Mend(ctx)
		s.Must(s.Run(ctx, "kubectl", "delete", "staticroute", name, "--ignore-not-found", "--timeout=60s"))
	})
	s.WaitFor("StaticRoute "+name+" to be on both devices", func(ctx context.Context) error {
		out, err := s.Run(ctx, "kubectl", "get", "staticroute", name, "-o", "jsonpath={.status.applied}/{.status.desired}")
		if err == nil && out != "2/2" {
			err = fmt.Errorf("it is on %q", out)
		}
		return err
	})
}

// killPod ends the process of a pod's container as a crash would.
func (s *system) killPod(pod corev1.Pod) {
	s.T.Helper()
	s.signal(pod, "SIGKILL")
}

// signal sends a signal to the process of a pod's container, and to no other.
func (s *system) signal(pod corev1.Pod, signal string) {
	s.T.Helper()
	_, id, _ := strings.Cut(pod.Status.ContainerStatuses[0].ContainerID, "://")
	_, err := s.on(s.T.Context(), pod.Spec.NodeName, "ctr --namespace k8s.io tasks kill --signal "+signal+" "+id)
	s.Check(err)
}

// The replica that leads is killed: another leads, and devices that were linked to it connect to
// whichever they find.
func TestShip_08_LeaderKilledAnotherLeads(t *testing.T) {
	s := newSystem(t)
	identity, pod := s.waitLeader("")
	reporters := map[string]corev1.Pod{"edge1": s.reporter("edge1"), "edge2": s.reporter("edge2")}
	containers := map[string][]string{"edge1": s.Containers("edge1"), "edge2": s.Containers("edge2")}
	s.killPod(pod)
	for _, p := range reporters {
		s.reportsOf(p)
	}
	s.waitLeader(identity)
	s.leads("after-the-leader")
	s.sameContainers(containers)
}

// sameContainers fails the test where containers of devices are not those of before.
func (s *system) sameContainers(before map[string][]string) {
	s.T.Helper()
	for node, want := range before {
		have := map[string]bool{}
		for _, id := range s.Containers(node) {
			have[id] = true
		}
		for _, id := range want {
			if !have[id] {
				s.T.Errorf("container %s of %s has ended", id, node)
			}
		}
	}
}

// A node is drained: the eviction passes, with two replicas and with one alone, and the devices
// that were linked to it move to another; no device is shown as NotReady. The one replica that is
// evicted serves until its replacement is ready.
func TestShip_10_NodeDrainedDevicesGoOn(t *testing.T) {
	s := newSystem(t)
	reporters := map[string]corev1.Pod{"edge1": s.reporter("edge1"), "edge2": s.reporter("edge2")}
	containers := map[string][]string{"edge1": s.Containers("edge1"), "edge2": s.Containers("edge2")}
	for _, replicas := range []string{"2", "1"} {
		s.Kubectl("-n", systemNamespace, "scale", "deployment", deployment, "--replicas="+replicas)
		s.waitRolledOut(deployment)
		drained := s.waitReplicaOf("edge1").Spec.NodeName
		end := s.neverNotReady("edge1", "edge2")
		s.drain(drained)
		for _, node := range []string{"edge1", "edge2"} {
			s.WaitFor(node+" to be linked to a replica elsewhere", func(ctx context.Context) error {
				p, err := s.replicaOf(ctx, node)
				if err == nil && p.Spec.NodeName == drained {
					err = fmt.Errorf("it is linked to %s on %s", p.Name, drained)
				}
				return err
			})
			s.reportsOf(reporters[node])
		}
		end()
		s.waitRolledOut(deployment)
		pods, err := s.pods(t.Context())
		s.Check(err)
		for name, p := range pods {
			if p.Spec.NodeName == drained {
				t.Errorf("%s runs on %s, which is drained", name, drained)
			}
		}
		s.Kubectl("uncordon", drained)
	}
	s.sameContainers(containers)
}

// drain evicts all pods of a node, as its administrator does, until the test ends at the latest.
func (s *system) drain(node string) {
	s.T.Helper()
	s.T.Cleanup(func() { s.Must(s.Run(context.Background(), "kubectl", "uncordon", node)) })
	s.Kubectl("drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=3m")
}

// A node loses its power: the devices that were linked to its replica move to the other node's.
func TestShip_11_NodeLostDevicesGoOn(t *testing.T) {
	s := newSystem(t)
	s.waitRolledOut(deployment)
	lost := s.waitReplicaOf("edge1").Spec.NodeName
	reporters := map[string]corev1.Pod{"edge1": s.reporter("edge1"), "edge2": s.reporter("edge2")}
	containers := map[string][]string{"edge1": s.Containers("edge1"), "edge2": s.Containers("edge2")}
	s.Check(s.Trial.PowerOff(t.Context(), lost))
	for _, node := range []string{"edge1", "edge2"} {
		s.WaitFor(node+" to be linked to the other node", func(ctx context.Context) error {
			p, err := s.replicaOf(ctx, node)
			if err == nil && p.Spec.NodeName == lost {
				err = fmt.Errorf("it says that it is linked to %s on %s", p.Name, lost)
			}
			return err
		})
		s.reportsOf(reporters[node])
	}
	s.WaitFor("the leader to be on the other node", func(ctx context.Context) error {
		identity, err := s.leader(ctx)
		if err != nil {
			return err
		}
		pods, err := s.pods(ctx)
		for name, p := range pods {
			if err == nil && strings.HasPrefix(identity, name+"-") && p.Spec.NodeName != lost {
				return nil
			}
		}
		return errors.Join(err, fmt.Errorf("it is %s", identity))
	})
	s.leads("after-the-node")
	s.sameContainers(containers)
	s.Check(s.Trial.Reboot(t.Context(), lost, false))
	s.WaitFor("replicas on both nodes", func(ctx context.Context) error {
		pods, err := s.pods(ctx)
		nodes := map[string]bool{}
		for _, p := range pods {
			nodes[p.Spec.NodeName] = true
		}
		if err == nil && len(nodes) != len(trialNodes()) {
			err = fmt.Errorf("they are on %v", nodes)
		}
		return err
	})
}

func trialNodes() (plain []trial.Node) {
	for _, n := range tests().Options.Nodes() {
		if n.Plain {
			plain = append(plain, n)
		}
	}
	return plain
}

// A replica hangs: it is stopped, while its kernel still acknowledges the devices' messages by
// websocket. The kubelet ends it by its livenessProbe, and its devices move to another, or to its
// replacement, before a Lease is too old: their Nodes stay Ready. The grace of
// kube-controller-manager and the device's keepalive are the usual ones, 50 s and 10 s.
func TestReplicaHangs(t *testing.T) {
	s := newSystem(t)
	s.waitRolledOut(deployment)
	set := func(ctx context.Context, settings ...string) { s.Check(s.Trial.Set(ctx, "edge1", settings)) }
	t.Cleanup(func() {
		set(context.Background(), "modules.edgeHub.transport=auto", "modules.edgeHub.keepalive=3s", "modules.edgeHub.idleTimeout=9s") // as for all tests
	})
	set(t.Context(), "modules.edgeHub.transport=websocket", "modules.edgeHub.keepalive=10s", "modules.edgeHub.idleTimeout=30s")
	s.WaitFor("a link over websocket", func(ctx context.Context) error {
		e, err := s.edge(ctx, "edge1")
		if err == nil && (!e.Link.Linked || e.Link.Transport != "websocket") {
			err = fmt.Errorf("link: %+v", e.Link)
		}
		return err
	})
	reporter := s.reporter("edge1")
	s.reportsOf(reporter)
	containers := map[string][]string{"edge1": s.Containers("edge1"), "edge2": s.Containers("edge2")}
	leases := s.Client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	// Last, and from the Lease: a link that moved to the other replica in the meantime would stay
	// there, and no session would ever replace one with the replica that hangs.
	var hung corev1.Pod
	var before *coordinationv1.Lease
	s.WaitFor("the Lease of edge1 to be of the session that it has", func(ctx context.Context) (err error) {
		if hung, err = s.replicaOf(ctx, "edge1"); err != nil {
			return err
		}
		before, err = leases.Get(ctx, "edge1", metav1.GetOptions{})
		if err == nil && !strings.HasPrefix(before.Annotations["skerry.io/cloudcore"], hung.Name+"-") {
			err = fmt.Errorf("it is of %s, and the link leads to %s", before.Annotations["skerry.io/cloudcore"], hung.Name)
		}
		return err
	})
	restarts := hung.Status.ContainerStatuses[0].RestartCount
	end := s.neverNotReady("edge1", "edge2")
	s.signal(hung, "SIGSTOP")
	s.WaitFor("the Lease of edge1 to be renewed by another session", func(ctx context.Context) error {
		l, err := leases.Get(ctx, "edge1", metav1.GetOptions{})
		if err == nil && (l.Annotations["skerry.io/cloudcore"] == before.Annotations["skerry.io/cloudcore"] || !l.Spec.RenewTime.After(before.Spec.RenewTime.Time)) {
			err = fmt.Errorf("it is of %v, renewed at %v", l.Annotations, l.Spec.RenewTime)
		}
		return err
	})
	s.WaitFor(hung.Name+" to be started again", func(ctx context.Context) error {
		p, err := s.Client.CoreV1().Pods(systemNamespace).Get(ctx, hung.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		c := p.Status.ContainerStatuses[0]
		// On a machine that is busy the probe may end the next one in vain, too.
		if c.RestartCount <= restarts || !suite.PodReady(*p) {
			return fmt.Errorf("%d restarts, %d before, %+v", c.RestartCount, restarts, c.State)
		}
		if by := c.LastTerminationState.Terminated; by == nil || by.ExitCode != 128+9 {
			return fmt.Errorf("it ended by %+v", by)
		}
		return nil
	})
	s.reportsOf(reporter)
	end()
	s.sameContainers(containers)
}

package incluster_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
)

const (
	netd = "/etc/cni/net.d"
	ours = netd + "/10-skerry.conflist"
	// foreignCNI is an operator's own configuration.
	foreignCNI = `{"cniVersion": "0.4.0", "name": "foreign", "plugins": [{"type": "bridge", "bridge": "foreign0", "isGateway": true,
"ipam": {"type": "host-local", "dataDir": "/run/foreign", "ranges": [[{"subnet": "10.99.0.0/24"}]]}}]}`
)

// podIn makes a pod on a device and waits until it is Ready with an address of a range.
func (s *system) podIn(namespace, name, node, subnet string) {
	s.T.Helper()
	s.Apply(namespace, fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: %s, labels: {app: %s}}\nspec:\n  nodeName: %s\n  terminationGracePeriodSeconds: 1\n"+
		"  containers: [{name: app, image: skerry.local/sample:1, readinessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1}}]\n", name, name, node))
	pod := s.WaitPods(namespace, "app="+name, node, 1)[0]
	if a, err := netip.ParseAddr(pod.Status.PodIP); err != nil || !netip.MustParsePrefix(subnet).Contains(a) {
		s.T.Errorf("pod %s on %s has %s, which is not in %s", name, node, pod.Status.PodIP, subnet)
	}
	if page := s.Must(s.Page(s.T.Context(), pod)); !strings.Contains(page, "pod ") {
		s.T.Errorf("pod %s answers %q", name, page)
	}
}

// waitCNI waits until the CNI configurations of a device are these, and ours has the text in it.
func (s *system) waitCNI(node, names, text string) {
	s.T.Helper()
	s.WaitFor(fmt.Sprintf("%s on %s to have %s", netd, node, names), func(ctx context.Context) error {
		have, err := s.on(ctx, node, "cd "+netd+" && echo *")
		if err != nil {
			return err
		}
		if strings.TrimSpace(have) != names {
			return fmt.Errorf("there is %s", have)
		}
		if text == "" {
			return nil
		}
		file, err := s.on(ctx, node, "cat "+ours)
		if err == nil && !strings.Contains(file, text) {
			err = errors.New(file)
		}
		return err
	})
}

// Devices join without a CNI configuration, and run pods: each takes the first range of the list
// that overlaps no other network, and two may have the same. A foreign configuration is left alone.
// A network that comes to the device's range moves it to the next.
func TestShip_15_PodNetworkTakesAFreeRange(t *testing.T) {
	s := newSystem(t)
	const mine, first, second, foreign = "10-skerry.conflist", "10.222.0.0/24", "172.28.222.0/24", "99-foreign.conflist"
	namespace := s.Namespace()
	t.Cleanup(func() {
		s.Must(s.on(context.Background(), "edge2", "rm -f "+netd+"/"+foreign+"; ip link delete office 2>/dev/null; true"))
	})
	for _, node := range []string{"edge1", "edge2"} {
		s.waitCNI(node, mine, first)
		s.podIn(namespace, "empty-"+node, node, first)
	}

	s.Must(s.on(t.Context(), "edge2", "cat > "+netd+"/"+foreign+" <<'END'\n"+foreignCNI+"\nEND"))
	s.waitCNI("edge2", foreign, "") // ours has gone, though it comes first by its name
	s.podIn(namespace, "foreign", "edge2", "10.99.0.0/24")
	s.Must(s.on(t.Context(), "edge2", "rm "+netd+"/"+foreign))
	s.waitCNI("edge2", mine, first)

	s.Must(s.on(t.Context(), "edge2", "ip link add office type bridge && ip address add 10.222.0.1/16 dev office && ip link set office up"))
	s.waitCNI("edge2", mine, second)
	s.podIn(namespace, "in-use", "edge2", second)
	s.waitCNI("edge1", mine, first)

	// Before any change, reset lists the files that it would remove.
	s.Check(s.Trial.Stop(t.Context(), "edge2", "edgecore"))
	out, err := s.on(t.Context(), "edge2", s.Root+"/bin/edgecore reset 2>&1; true")
	s.Check(err)
	if !strings.Contains(out, ours) || strings.Contains(out, foreign) {
		t.Errorf("edgecore reset would delete:\n%s", out)
	}
}

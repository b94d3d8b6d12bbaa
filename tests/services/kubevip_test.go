package services_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/build/image"
	"github.com/skerry-io/skerry/tests/cluster/binary"
)

const (
	kubeVIPImage = "skerry.local/kube-vip:v0.9.1"
	kubeVIPAt    = "192.168.100.242"
)

// holders are the nodes whose kernel has an address.
func (s *system) holders(ctx context.Context, address string) (all []string, err error) {
	for _, node := range []string{"edge1", "edge2"} {
		out, err := s.tryOn(ctx, node, "ip -o address show dev "+lan)
		if err != nil {
			return nil, err
		}
		if strings.Contains(out, " "+address+"/") {
			all = append(all, node)
		}
	}
	return all, nil
}

// kube-vip itself, as its module has it, in a pod on each edge: elected by a Lease, it answers ARP
// for the address, and the Service is reached there.
func TestServices_14_KubeVIP(t *testing.T) {
	s := newSystem(t)
	paths, err := binary.Build(t.Context(), s.Root, "kube-vip")
	s.Check(err)
	tar := filepath.Join(s.Dir, "images", "kube-vip.tar")
	s.Check(image.WriteFile(tar, kubeVIPImage, paths[0]))
	for _, node := range []string{"edge1", "edge2"} {
		s.on(node, "ctr --namespace=k8s.io images import "+tar)
		// Not nftables: there kube-proxy translates the API's address before edgecore can lead
		// kube-vip's requests to the device's own API.
		s.runProxy(node, "iptables")
		s.WaitFor("pods on "+node+" to be led to the device's API in front of kube-proxy", func(ctx context.Context) error {
			out, err := s.tryOn(ctx, node, "iptables -t nat -S OUTPUT")
			if err == nil && (!strings.Contains(out, "KUBE-SERVICES") || strings.Index(out, "-j SKERRY-API") > strings.Index(out, "-j KUBE-SERVICES")) {
				err = errors.New(out)
			}
			return err
		})
	}
	cloudcore := func(args string) (string, error) {
		// In this machine's own network, as an administrator would.
		return s.cloudcore(t.Context(), "kube-vip "+args)
	}
	if out, err := cloudcore("apply --interface lan0 --cidr 10.10.1.0/29 --image " + kubeVIPImage); err == nil {
		t.Errorf("a range with the address of a node is taken: %s", out)
	} else if !strings.Contains(err.Error(), "10.10.1.2 is the address of node edge1") {
		t.Error(err)
	}
	t.Cleanup(func() { s.Must(s.cloudcore(context.Background(), "kube-vip delete")) })
	if out := s.Must(cloudcore("apply --interface lan0 --cidr 192.168.100.240/29 --exclude 192.168.100.241 --image " + kubeVIPImage)); !strings.Contains(out, "192.168.100.242-192.168.100.246") {
		t.Errorf("it says %s", out)
	}
	s.make(`apiVersion: v1
kind: Service
metadata: {name: vip, namespace: sample, annotations: {kube-vip.io/loadbalancerIPs: ` + kubeVIPAt + `}}
spec:
  type: LoadBalancer
  selector: {app: sample}
  ports: [{port: 80, targetPort: 8080}]
`)
	s.served(kubeVIPAt + ":80")
	var holder string
	s.WaitFor("one node to hold the address", func(ctx context.Context) error {
		all, err := s.holders(ctx, kubeVIPAt)
		if err == nil && len(all) != 1 {
			err = fmt.Errorf("held by %v", all)
		}
		if err == nil {
			holder = all[0]
		}
		return err
	})
	mac := strings.TrimSpace(s.on(holder, "ip -o link show dev lan0 | sed 's/.*link.ether \\([0-9a-f:]*\\).*/\\1/'"))
	if out := s.on("client", "ip neighbour show "+kubeVIPAt); !strings.Contains(out, mac) {
		t.Errorf("the client knows %q of the address, %s has %s", out, holder, mac)
	}
	leases, err := s.Client.CoordinationV1().Leases("sample").List(t.Context(), metav1.ListOptions{})
	s.Check(err)
	elected := false
	for _, l := range leases.Items {
		elected = elected || l.Spec.HolderIdentity != nil && *l.Spec.HolderIdentity == holder
	}
	if !elected {
		t.Errorf("no Lease of %s: %v", holder, leases.Items)
	}
	s.WaitFor("the mark of its connections", func(ctx context.Context) error {
		got, err := s.mark(ctx, holder, "tcp", kubeVIPAt+":80")
		if err == nil && got != 24 {
			err = fmt.Errorf("it is %d", got)
		}
		return err
	})

	if out := s.Must(cloudcore("delete")); strings.HasPrefix(out, "0 ") {
		t.Errorf("the first delete: %s", out)
	}
	s.WaitFor("kube-vip to be gone", func(ctx context.Context) error {
		all, err := s.holders(ctx, kubeVIPAt)
		if err == nil && len(all) > 0 {
			err = fmt.Errorf("held by %v", all)
		}
		left, listErr := s.Run(ctx, "kubectl", "-n", "kube-system", "get", "pods,daemonsets,configmaps", "-o", "name")
		if listErr == nil && (strings.Contains(left, "kube-vip") || strings.Contains(left, "kubevip")) {
			listErr = errors.New(left)
		}
		return errors.Join(err, listErr)
	})
	if out := s.Must(cloudcore("delete")); !strings.HasPrefix(out, "0 objects") {
		t.Errorf("the second delete: %s", out)
	}
	if out := s.Kubectl("-n", "sample", "get", "service", "vip", "-o", "jsonpath={.status.loadBalancer}"); out != "{}" {
		t.Errorf("the Service has still %s", out)
	}
}

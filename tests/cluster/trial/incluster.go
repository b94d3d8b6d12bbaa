package trial

import (
	"context"
	"crypto/sha256"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/skerry-io/skerry/tests/cluster/ca"
	"github.com/skerry-io/skerry/tests/cluster/host"
	"github.com/skerry-io/skerry/tests/cluster/lab"
	"github.com/skerry-io/skerry/tests/cluster/manifest"
)

const (
	// deploymentTimeout is for the pods of cloudcore to be Ready on a loaded machine.
	deploymentTimeout = 3 * time.Minute
)

// startInCluster installs cloudcore as its users do, and returns when edges reach it.
func (t *Trial) startInCluster(ctx context.Context, cfg *rest.Config) error {
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	if err := t.startLoadBalancer(ctx); err != nil || t.state.Options.Bare {
		return err
	}
	// kube-apiserver has been configured with cloudcore's CA before there is a cloudcore.
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: systemNamespace}}
	if _, err := client.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("making the namespace of cloudcore: %w", err)
	}
	if err := t.bringCA(ctx, client); err != nil {
		return err
	}
	if err := t.install(ctx, cfg); err != nil {
		return err
	}
	s, err := client.CoreV1().Services(systemNamespace).Get(ctx, tunnelName, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("looking for the way to kubelets: %w", err)
	}
	if err := t.addName(s.Spec.ClusterIP, tunnelName); err != nil {
		return err
	}
	if err := t.awaitDeployments(ctx, client); err != nil {
		return err
	}
	t.say("cloudcore is ready")
	return t.awaitLoadBalancer(ctx)
}

// install applies the output of `cloudcore install`.
func (t *Trial) install(ctx context.Context, cfg *rest.Config) error {
	reference, err := t.packCloudcore()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, t.binary("cloudcore"), "install", "--image", reference, "--advertise", t.server())
	var errs strings.Builder
	cmd.Stderr = &errs
	printed, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("cloudcore install: %w: %s", err, strings.TrimSpace(errs.String()))
	}
	if err := os.WriteFile(filepath.Join(t.dir, "install.yaml"), printed, 0o644); err != nil {
		return fmt.Errorf("keeping install.yaml: %w", err)
	}
	return t.record("install", fmt.Sprintf("%x", sha256.Sum256(printed))).Apply(ctx, cfg, func() ([]*unstructured.Unstructured, error) {
		return manifest.Read(printed)
	})
}

// addName lets the cloud's host resolve a name, instead of the cluster's DNS.
func (t *Trial) addName(address, name string) error {
	const file = "/etc/hosts"
	have, err := t.readHost(Cloud, file)
	if err != nil {
		return err
	}
	line := address + " " + name + "\n"
	if strings.Contains(string(have), line) {
		return nil
	}
	return t.writeHost(Cloud, file, append(have, line...), 0o644)
}

func (t *Trial) awaitDeployments(ctx context.Context, client kubernetes.Interface) error {
	return poll(ctx, deploymentTimeout, func(ctx context.Context) (bool, error) {
		list, err := client.AppsV1().Deployments(systemNamespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		var errs []error
		for _, d := range list.Items {
			if s := d.Status; s.ObservedGeneration < d.Generation || s.UpdatedReplicas < *d.Spec.Replicas || s.AvailableReplicas < *d.Spec.Replicas {
				errs = append(errs, fmt.Errorf("deployment %s: %d of %d replicas are available", d.Name, s.AvailableReplicas, *d.Spec.Replicas))
			}
		}
		return len(errs) == 0, errors.Join(errs...)
	})
}

// awaitLoadBalancer waits until an edge can dial cloudcore; one that is cut can't.
func (t *Trial) awaitLoadBalancer(ctx context.Context) error {
	for _, n := range t.state.Options.Nodes() {
		if n.Plain || t.machine(n.Name).Cut != lab.Whole {
			continue
		}
		return poll(ctx, readyTimeout, func(ctx context.Context) (bool, error) {
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			conn, err := t.machine(n.Name).Dial(ctx, "tcp", t.server()+":443")
			if err != nil {
				return false, err
			}
			return true, conn.Close()
		})
	}
	return nil
}

// startLoadBalancer starts the program that forwards the load balancer's address to nodes, on the
// router.
func (t *Trial) startLoadBalancer(ctx context.Context) error {
	admin, err := t.Admin()
	if err != nil {
		return err
	}
	raw, err := kubeconfig("https://"+lab.Cloud().String()+":"+apiPort, admin.CAData, &clientcmdapi.AuthInfo{ClientCertificateData: admin.CertData, ClientKeyData: admin.KeyData})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(host.Log(t.hostDir(router)), 0o755); err != nil {
		return fmt.Errorf("making the router's directory: %w", err)
	}
	if err := os.WriteFile(t.balancerKube(), raw, 0o600); err != nil {
		return fmt.Errorf("writing the load balancer's kubeconfig: %w", err)
	}
	p, err := t.program(router, "loadbalancer")
	if err != nil {
		return err
	}
	return t.start(ctx, router, p)
}

// startProxy gives kube-proxy its own account and starts it.
func (t *Trial) startProxy(ctx context.Context, name string) error {
	if _, err := t.readHost(name, proxyKube); errors.Is(err, os.ErrNotExist) {
		admin, err := t.Admin()
		if err != nil {
			return err
		}
		pki := filepath.Join(t.machine(Cloud).Root(), planeDir, "pki")
		cert, key, err := ca.Client(filepath.Join(pki, "ca.crt"), filepath.Join(pki, "ca.key"), pkix.Name{CommonName: "system:kube-proxy"})
		if err != nil {
			return err
		}
		raw, err := kubeconfig("https://"+lab.Cloud().String()+":"+apiPort, admin.CAData, &clientcmdapi.AuthInfo{ClientCertificateData: cert, ClientKeyData: key})
		if err != nil {
			return err
		}
		if err := t.writeHost(name, proxyKube, raw, 0o600); err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	p, err := t.program(name, "kube-proxy")
	if err != nil {
		return err
	}
	return t.start(ctx, name, p)
}

// connectNode makes a plain node one of the cloud's own network.
func (t *Trial) connectNode(n Node) error {
	var others []int
	for _, o := range t.state.Options.Nodes() {
		if o.Plain && o.Number != n.Number {
			others = append(others, o.Number)
		}
	}
	return lab.ConnectNode(t.machine(router).Host, t.machine(Cloud).Host, n.Number, others, apiPort)
}

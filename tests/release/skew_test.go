package release_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/skerry-io/skerry/tests/cluster/binary"
	"github.com/skerry-io/skerry/tests/cluster/suite"
	"github.com/skerry-io/skerry/tests/cluster/trial"
)

// replace replaces a program by another; running processes keep the old one.
func replace(t *testing.T, path, by string) {
	t.Helper()
	command(t, "/", nil, "cp", by, path+".new")
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// A skewed trial has programs of two releases.
type skewed struct {
	*suite.System
	edgecore string
}

// status is a device's own status.
func (s skewed) status(ctx context.Context, node string) (string, error) {
	var out, errs strings.Builder
	_, err := s.Trial.Exec(ctx, node, trial.Streams{Out: &out, Err: &errs}, nil, s.edgecore, "status")
	if err == nil && out.Len() == 0 {
		err = errors.New(errs.String())
	}
	return out.String(), err
}

// linked waits until a device has a link to a cloudcore of a version.
func (s skewed) linked(node, version string) {
	s.T.Helper()
	s.WaitFor(fmt.Sprintf("%s to be linked to cloudcore %s", node, version), func(ctx context.Context) error {
		out, err := s.status(ctx, node)
		if err != nil {
			return err
		}
		if !strings.Contains(out, "up for") || !strings.Contains(out, ", "+version+")") {
			return fmt.Errorf("it says\n%s", out)
		}
		return nil
	})
}

// TestShip_19_OldEdgeWorksWithANewCloud: devices with the previous release join the cloudcore of
// today and work with it: pods, logs, reports after a cut, routes. One of them is upgraded and
// keeps its containers. Then cloudcore goes back to the previous release, with its configuration:
// both devices work with it.
func TestShip_19_OldEdgeWorksWithANewCloud(t *testing.T) {
	root, err := binary.Root()
	if err != nil {
		t.Fatal(err)
	}
	previous, err := binary.BuildBefore(t.Context(), root, "cloudcore", "edgecore")
	if err != nil {
		t.Fatal(err)
	}
	old := map[string]string{"cloudcore": previous[0], "edgecore": previous[1]}
	// Running programs are replaced in place.
	dir := t.TempDir()
	edgecore, cloudcore := filepath.Join(dir, "edgecore"), filepath.Join(dir, "cloudcore")
	replace(t, edgecore, old["edgecore"])
	o := trial.Options{Edges: 2, Link: "auto", Sample: true, Paths: map[string]string{"edgecore": edgecore, "cloudcore": cloudcore}}
	for _, module := range []string{"names", "services", "site"} {
		o.Set = append(o.Set, "modules."+module+`.enable="true"`) // both read that; true without quotes is of today
	}
	built, err := binary.Build(t.Context(), root, append(o.Programs(), "trial")...)
	if err != nil {
		t.Fatal(err)
	}
	today := map[string]string{}
	for _, path := range built {
		today[filepath.Base(path)] = path
	}
	replace(t, cloudcore, today["cloudcore"])
	s := skewed{suite.Make(t, "skew", o), edgecore}

	is := programVersion(t, today["cloudcore"])
	s.linked("edge1", is)
	s.linked("edge2", is)
	s.works("old-edges", "edge1", "edge2")

	s.upgrade("edge1", today["edgecore"])
	s.linked("edge1", is)
	s.works("one-upgraded", "edge1", "edge2")

	h, err := s.Trial.Host(trial.Cloud)
	s.Check(err)
	s.Check(s.Trial.Stop(t.Context(), trial.Cloud, "cloudcore"))
	file := filepath.Join(h.Root(), "etc/skerry/cloudcore.yaml")
	raw, err := os.ReadFile(file)
	s.Check(err)
	var config map[string]any
	s.Check(yaml.Unmarshal(raw, &config))
	config["devices"] = map[string]any{"listen": ":443"} // the default of today
	raw, err = yaml.Marshal(config)
	s.Check(err)
	s.Check(os.WriteFile(file, raw, 0o644))
	replace(t, cloudcore, old["cloudcore"])
	s.Start(trial.Cloud, "cloudcore")
	was := programVersion(t, old["cloudcore"])
	s.linked("edge1", was)
	s.linked("edge2", was)
	s.works("old-cloud", "edge1", "edge2")
}

// programVersion is the version that a program prints.
func programVersion(t *testing.T, path string) string {
	t.Helper()
	fields := strings.Fields(command(t, "/", nil, path, "version"))
	if len(fields) < 2 {
		t.Fatalf("%s says %q", path, fields)
	}
	return fields[1]
}

// works shows that devices work with the cloud: a new pod runs with the objects that it refers to
// and its log is read, a new route reaches the kernel and its state the cloud, and a crash while
// the device is cut off is reported after it.
func (s skewed) works(name string, nodes ...string) {
	s.T.Helper()
	namespace := name
	s.Kubectl("create", "namespace", namespace)
	s.WaitFor("the default ServiceAccount", func(ctx context.Context) error {
		_, err := s.Client.CoreV1().ServiceAccounts(namespace).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
	s.Apply(namespace, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: greeter}\ndata: {greeting: hello "+name+"}\n")
	s.Apply(namespace, "apiVersion: skerry.io/v1alpha1\nkind: StaticRoute\nmetadata: {name: "+name+"}\nspec: {subnet: 172.20.0.0/16, gateway: 192.168.100.200}\n")
	for _, node := range nodes {
		s.Apply(namespace, "apiVersion: v1\nkind: Pod\nmetadata: {name: "+node+", labels: {app: "+node+"}}\nspec:\n  nodeName: "+node+"\n  terminationGracePeriodSeconds: 1\n"+
			"  containers:\n  - {name: app, image: 'skerry.local/sample:1', volumeMounts: [{name: config, mountPath: /config}]}\n  volumes: [{name: config, configMap: {name: greeter}}]\n")
		pod := s.WaitPods(namespace, "app="+node, node, 1)[0]
		if page := s.Must(s.Page(s.T.Context(), pod)); !strings.Contains(page, "hello "+name) {
			s.T.Errorf("the pod on %s says\n%s", node, page)
		}
		// A kubelet that has just started has no serving certificate yet.
		s.WaitFor("the log of the pod on "+node, func(ctx context.Context) error {
			log, err := s.Run(ctx, "kubectl", "-n", namespace, "logs", node)
			if err == nil && !strings.Contains(log, "GET / from") {
				err = fmt.Errorf("it is %q", log)
			}
			return err
		})
		s.Cut(node)
		s.WaitFor(node+" to know that it is cut off", func(ctx context.Context) error {
			out, err := s.status(ctx, node)
			if err == nil && strings.Contains(out, "up for") {
				err = fmt.Errorf("it says\n%s", out)
			}
			return err
		})
		// The connection ends with the process, so the request has no answer.
		if code, err := s.Trial.Exec(s.T.Context(), node, trial.Streams{}, nil, "curl", "-sS", "--max-time", "10", "-X", "POST", "http://"+pod.Status.PodIP+":8080/crash"); err != nil || code == 0 {
			s.T.Fatalf("the pod on %s has not crashed: code %d, %v", node, code, err)
		}
		s.WaitFor("the pod to run again", func(ctx context.Context) error {
			_, err := s.Page(ctx, pod)
			return err
		})
		s.Heal(node)
		s.WaitFor("the crash to be reported", func(ctx context.Context) error {
			p, err := s.Client.CoreV1().Pods(namespace).Get(ctx, node, metav1.GetOptions{})
			if err == nil && p.Status.ContainerStatuses[0].RestartCount != 1 {
				err = fmt.Errorf("%d restarts", p.Status.ContainerStatuses[0].RestartCount)
			}
			return err
		})
	}
	s.WaitFor("the route to be on all devices", func(ctx context.Context) error {
		out, err := s.Run(ctx, "kubectl", "get", "staticroute", name, "-o", "jsonpath={.status.applied}/{.status.desired}")
		if err == nil && out != fmt.Sprintf("%d/%[1]d", len(nodes)) {
			err = fmt.Errorf("it is on %q", out)
		}
		return err
	})
	for _, node := range nodes {
		var out strings.Builder
		if code, err := s.Trial.Exec(s.T.Context(), node, trial.Streams{Out: &out}, nil, "ip", "route", "show", "172.20.0.0/16"); err != nil || code != 0 || !strings.Contains(out.String(), "192.168.100.200") {
			s.T.Errorf("the kernel of %s has %q (%d, %v)", node, out.String(), code, err)
		}
	}
	s.Kubectl("delete", "namespace", namespace, "--timeout=2m")
	s.Kubectl("delete", "staticroute", name, "--timeout=2m")
}

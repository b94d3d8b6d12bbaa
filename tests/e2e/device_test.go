package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/skerry-io/skerry/tests/cluster/trial"
)

// minuteEnv sets how long a minute of the specifications takes here, as a Go duration: 3s unless it
// is set, 1m to run the scenarios as they are written.
const minuteEnv = "SKERRY_MINUTE"

// minutes is how long n minutes of a scenario take here.
func minutes(t *testing.T, n int) time.Duration {
	t.Helper()
	minute := 3 * time.Second
	if text := os.Getenv(minuteEnv); text != "" {
		var err error
		if minute, err = time.ParseDuration(text); err != nil || minute <= 0 {
			t.Fatalf("%s: %q is no length of a minute, like 6s or 1m", minuteEnv, text)
		}
	}
	return time.Duration(n) * minute
}

// lasts checks again and again, for the scenario's time, that a condition holds.
func (s *system) lasts(what string, long time.Duration, check func() error) {
	s.T.Helper()
	end := time.Now().Add(long)
	for {
		if err := check(); err != nil {
			s.T.Fatalf("%s, for %v: %v", what, long, err)
		}
		left := time.Until(end)
		if left <= 0 {
			return
		}
		select {
		case <-time.After(min(left, time.Second)):
		case <-s.T.Context().Done():
			s.T.Fatal(s.T.Context().Err())
		}
	}
}

// deviceConfig leads to a device's own API, as root of the device uses it.
func (s *system) deviceConfig(node string) *rest.Config {
	s.T.Helper()
	h, err := s.Trial.Host(node)
	s.Check(err)
	cfg, err := clientcmd.BuildConfigFromFlags("", filepath.Join(h.Root(), s.Trial.EdgeKubeconfig()))
	s.Check(err)
	cfg.Dial, cfg.QPS, cfg.WarningHandler = h.Dial, -1, rest.NoWarnings{}
	return cfg
}

// device is a client of a device's own API.
func (s *system) device(node string) kubernetes.Interface {
	s.T.Helper()
	client, err := kubernetes.NewForConfig(s.deviceConfig(node))
	s.Check(err)
	return client
}

// set changes a device's edgecore.yaml, which starts edgecore again, until the test ends.
func (s *system) set(node string, setting, before string) {
	s.T.Helper()
	s.Check(s.Trial.Set(s.T.Context(), node, []string{setting}))
	s.T.Cleanup(func() {
		if err := s.Trial.Set(context.Background(), node, []string{before}); err != nil {
			s.T.Error(err)
		}
	})
	s.waitLinked(node)
}

// reportEvents lets a device send its events to the cloud, or keep them. It stays so after the
// test: every other test that depends on it sets it.
func (s *system) reportEvents(node string, yes bool) {
	s.T.Helper()
	h, err := s.Trial.Host(node)
	s.Check(err)
	config, err := os.ReadFile(filepath.Join(h.Root(), "/etc/skerry/edgecore.yaml"))
	s.Check(err)
	if strings.Contains(string(config), "reportEvent: true") != yes {
		s.Check(s.Trial.Set(s.T.Context(), node, []string{fmt.Sprintf("modules.edged.reportEvent=%t", yes)}))
	}
	s.waitLinked(node)
}

// deviceStatus is the part of `edgecore status -o json` that tests look at.
type deviceStatus struct {
	Running bool `json:"running"`
	Link    struct {
		Linked    bool   `json:"linked"`
		Transport string `json:"transport"`
		Instance  string `json:"instance"`
		LastError string `json:"lastError"`
		Epoch     uint64 `json:"epoch"`

		Since, LastContact time.Time
	} `json:"link"`
	Data struct {
		Outbox struct {
			Waiting map[string]int `json:"waiting"`
			Dropped uint64         `json:"dropped"`
			Refused uint64         `json:"refused"`
		} `json:"outbox"`
		Interests []struct {
			Set    string `json:"set"`
			Synced bool   `json:"synced"`
		} `json:"interests"`
		DamagedStore string `json:"damagedStore"`
		Failed       uint64 `json:"failed"`
	} `json:"data"`
	Disk struct {
		Problem string `json:"problem"`
	} `json:"disk"`
}

// waiting is how many writes wait for the cloud.
func (d deviceStatus) waiting() int {
	n := 0
	for _, m := range d.Data.Outbox.Waiting {
		n += m
	}
	return n
}

// deviceStatus asks edgecore how it is, as `edgecore status` does.
func (s *system) deviceStatus(ctx context.Context, node string) (deviceStatus, error) {
	var d deviceStatus
	err := s.EdgeStatus(ctx, node, &d)
	return d, err
}

// waitLinked waits until a device has its link, and is synced.
func (s *system) waitLinked(node string) {
	s.T.Helper()
	s.WaitFor("the link of "+node, func(ctx context.Context) error {
		d, err := s.deviceStatus(ctx, node)
		if err != nil {
			return err
		}
		if !d.Link.Linked {
			return fmt.Errorf("no link: %s", d.Link.LastError)
		}
		for _, i := range d.Data.Interests {
			if !i.Synced {
				return fmt.Errorf("%q has not arrived", i.Set)
			}
		}
		return nil
	})
}

// waitUnlinked waits until a device has noticed that it has no link.
func (s *system) waitUnlinked(node string) {
	s.T.Helper()
	s.WaitFor(node+" to notice that its link is gone", func(ctx context.Context) error {
		d, err := s.deviceStatus(ctx, node)
		if err == nil && d.Link.Linked {
			err = errors.New("it believes in its link still")
		}
		return err
	})
}

// waitDelivered waits until the backlog for the cloud is empty.
func (s *system) waitDelivered(node string) {
	s.T.Helper()
	s.WaitFor("the outbox of "+node+" to be empty", func(ctx context.Context) error {
		d, err := s.deviceStatus(ctx, node)
		if err == nil && (!d.Link.Linked || d.waiting() > 0) {
			err = fmt.Errorf("linked: %t, waiting: %v", d.Link.Linked, d.Data.Outbox.Waiting)
		}
		return err
	})
}

// waitDevice waits for an answer of a device's own API about a pod.
func (s *system) waitDevice(node, namespace, name string, check func(*corev1.Pod) error) {
	s.T.Helper()
	client := s.device(node)
	s.WaitFor(fmt.Sprintf("pod %s/%s on %s", namespace, name, node), func(ctx context.Context) error {
		p, err := client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		return check(p)
	})
}

// islander is the sample application in a pod that is not evicted while its node is away.
func islander(name, node string) string {
	return strings.Replace(samplePod(name, node), "labels: {", `labels: {skerry.io/autonomy: "true", `, 1)
}

// pod makes an islander and waits until it is Ready.
func (s *system) pod(namespace, name, node string) *corev1.Pod {
	s.T.Helper()
	s.Apply(namespace, islander(name, node))
	return &s.WaitPods(namespace, "app="+name, node, 1)[0]
}

// post sends a POST to the sample application in a pod, from the pod's node.
func (s *system) post(pod *corev1.Pod, path string) {
	s.T.Helper()
	h, err := s.Trial.Host(pod.Spec.NodeName)
	s.Check(err)
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: h.Dial}}
	req, err := http.NewRequestWithContext(s.T.Context(), http.MethodPost, "http://"+net.JoinHostPort(pod.Status.PodIP, "8080")+path, http.NoBody)
	s.Check(err)
	res, err := client.Do(req)
	if err != nil {
		return // it may end before it answers: that is the request
	}
	res.Body.Close()
}

// same reports the differences of a node's containers.
func (s *system) same(node string, before []string) error {
	after := s.Containers(node)
	for _, c := range before {
		if !slices.Contains(after, c) {
			return fmt.Errorf("container %s is gone", c)
		}
	}
	if len(after) != len(before) {
		return fmt.Errorf("there were %d containers, there are %d", len(before), len(after))
	}
	return nil
}

// replaced returns an error until as many containers run on a node as before, one of them another
// than before.
func (s *system) replaced(node string, before []string) error {
	after := s.Containers(node)
	gone := 0
	for _, c := range before {
		if !slices.Contains(after, c) {
			gone++
		}
	}
	if gone != 1 || len(after) != len(before) {
		return fmt.Errorf("%d of %d containers are gone, %d run", gone, len(before), len(after))
	}
	return nil
}

// onHost runs a command on a host; an error or another code than 0 ends the test.
func (s *system) onHost(host, command string, args ...string) string {
	s.T.Helper()
	var out, errs strings.Builder
	code, err := s.Trial.Exec(s.T.Context(), host, trial.Streams{Out: &out, Err: &errs}, nil, command, args...)
	if err == nil && code != 0 {
		err = errors.New(strings.TrimSpace(errs.String()))
	}
	if err != nil {
		s.T.Fatalf("%s on %s: %v", command, host, err)
	}
	return out.String()
}

// path is a file of a host, as a path of this machine.
func (s *system) path(host, file string) string {
	s.T.Helper()
	h, err := s.Trial.Host(host)
	s.Check(err)
	return filepath.Join(h.Root(), file)
}

package edged

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/edge/internal/core/edgeapi"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager"
	"github.com/skerry-io/skerry/edge/internal/core/object"
)

func TestConfiguration(t *testing.T) {
	tests := map[string]struct {
		kubelet string
		labels  map[string]string
		want    []string // parts of the error; empty: no error
	}{
		"nothing":             {"{}", nil, nil},
		"YAML":                {"cgroupDriver: cgroupfs\nmaxPods: 20", nil, nil},
		"JSON":                {`{"maxPods":20,"failCgroupV1":false}`, nil, nil},
		"with kind":           {"apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nmaxPods: 20", nil, nil},
		"another kind":        {"apiVersion: kubelet.config.k8s.io/v1beta1\nkind: CredentialProviderConfig", nil, []string{"modules.edged.kubelet"}},
		"unknown field":       {"maxPod: 20", nil, []string{"modules.edged.kubelet.maxPod: unknown field"}},
		"field twice":         {"maxPods: 20\nmaxPods: 21", nil, []string{"maxPods"}},
		"wrong type":          {"maxPods: many", nil, []string{"modules.edged.kubelet", "maxPods"}},
		"several bad values":  {"maxPods: -1\npodPidsLimit: -7\nimageGCHighThresholdPercent: 101", nil, []string{"maxPods", "imageGCHighThresholdPercent"}},
		"unknown gate":        {"featureGates: {NoSuchGate: true}", nil, []string{"modules.edged.kubelet.featureGates.NoSuchGate: unrecognized"}},
		"own label":           {"{}", map[string]string{"example.org/site": "north"}, nil},
		"label of Kubernetes": {"{}", map[string]string{"node-role.kubernetes.io/edge": ""}, []string{"modules.edged.labels", "node-role.kubernetes"}},
		"no YAML":             {"\t{", nil, []string{"modules.edged.kubelet"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := New(Config{NodeName: "edge1", Kubelet: onAnyCgroups(test.kubelet), Labels: test.labels})
			if len(test.want) == 0 && err != nil {
				t.Fatal(err)
			}
			for _, want := range test.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("error %v, want one with %q", err, want)
				}
			}
		})
	}
}

// Every mistake at once, each with its field; also where the kubelet's own code ends at the first.
func TestValidate(t *testing.T) {
	tests := map[string]struct {
		kubelet string
		want    []Mistake
	}{
		"nothing": {`{"failCgroupV1":false}`, nil},
		"null":    {"", nil},
		"no set":  {"[]", []Mistake{{"", "is no set of fields"}}},
		"all kinds": {`{"failCgroupV1":false,"maxPod":20,"authentication":{"x509":{"caFile":"/x"}},"maxPods":-1,
			"featureGates":{"NoSuchGate":true,"AnotherGate":false},"eventBurst":"many","nodeStatusUpdateFrequency":"fast",
			"registerWithTaints":[{"key":"a","effect":"NoSchedule"},{"key":"b","kei":"c","effect":"NoSchedule"}],"memorySwap":{"swapBehavior":"Wild"}}`, []Mistake{
			{"featureGates.AnotherGate", "unrecognized feature gate: AnotherGate"},
			{"featureGates.NoSuchGate", "unrecognized feature gate: NoSuchGate"},
			{"eventBurst", "is a string; want int32"},
			{"nodeStatusUpdateFrequency", `time: invalid duration "fast"`},
			{"authentication.x509.caFile", "unknown field"},
			{"maxPod", "unknown field"},
			{"registerWithTaints[1].kei", "unknown field"},
			{"maxPods", "maxPods (--max-pods) -1 must not be a negative number"},
			{"memorySwap.swapBehavior", `memorySwap.swapBehavior "Wild" must be one of: "", "LimitedSwap" or "NoSwap"`},
		}},
		"another kind": {`{"apiVersion":"kubelet.config.k8s.io/v1beta1","kind":"CredentialProviderConfig"}`,
			[]Mistake{{"", "this is a *config.CredentialProviderConfig, not a KubeletConfiguration"}}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got := slices.DeleteFunc(Validate([]byte(tc.kubelet)), func(m Mistake) bool { return strings.Contains(m.Message, "using cgroup v1") }) // of this machine
			if diff := cmp.Diff(tc.want, got, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// onAnyCgroups makes the configuration valid on hosts with cgroup v1, which the kubelet refuses by
// default.
func onAnyCgroups(kubelet string) []byte {
	switch {
	case kubelet == "{}":
		return []byte("failCgroupV1: false")
	case strings.Contains(kubelet, "failCgroupV1") || strings.HasPrefix(kubelet, "\t"):
		return []byte(kubelet)
	}
	return []byte(kubelet + "\nfailCgroupV1: false")
}

func TestDefaults(t *testing.T) {
	m, err := New(Config{
		NodeName: "edge1", NodeIP: "192.0.2.7", RootDir: "/data/kubelet/", Verbosity: 4, ClientCAFile: "/etc/ca.pem",
		Kubelet: onAnyCgroups("evictionHard: {memory.available: 50Mi}\nmergeDefaultEvictionSettings: true"),
	})
	if err != nil {
		t.Fatal(err)
	}
	s := m.server
	got := map[string]string{
		"hostname": s.HostnameOverride, "ip": s.NodeIP, "root": s.RootDirectory, "certificates": s.CertDirectory, "ca": s.Authentication.X509.ClientCAFile,
		"verbosity": strconv.Itoa(int(s.Logging.Verbosity)), "memory": s.EvictionHard["memory.available"], "disk": s.EvictionHard["nodefs.available"],
		"authorization": string(s.Authorization.Mode), "anonymous": strconv.FormatBool(s.Authentication.Anonymous.Enabled),
		"runtime": s.ContainerRuntimeEndpoint,
	}
	want := map[string]string{
		"hostname": "edge1", "ip": "192.0.2.7", "root": "/data/kubelet", "certificates": "/data/kubelet/pki", "ca": "/etc/ca.pem",
		"verbosity": "4", "memory": "50Mi", "disk": "10%", "authorization": "Webhook", "anonymous": "false",
		"runtime": "unix:///run/containerd/containerd.sock",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	// The kubelet chooses the address at each start: that of the last boot may be another.
	if m, err := New(Config{NodeName: "edge1", RootDir: t.TempDir(), Kubelet: onAnyCgroups("{}")}); err != nil || m.server.NodeIP != "" {
		t.Errorf("without an address of the configuration: %v", err)
	}
	if s.KubeConfig == "" {
		t.Error("without a kubeconfig the kubelet would drop its clients")
	}
}

// By default a shutdown is delayed for containers to end; the operator's settings take precedence.
// The kubelet does not get them: it would end pods permanently.
func TestTraps_21_ShutdownWaitsForContainers(t *testing.T) {
	const critical = 2_000_000_000
	for kubelet, want := range map[string][]Period{
		"{}":                        {{0, 20 * time.Second}, {critical, 10 * time.Second}},
		"shutdownGracePeriod: 0s":   nil,
		"shutdownGracePeriod: 100s": {{0, 100 * time.Second}, {critical, 0}},
		"shutdownGracePeriodByPodPriority: [{priority: 10, shutdownGracePeriodSeconds: 5}, {priority: 0, shutdownGracePeriodSeconds: 7}]": {
			{0, 7 * time.Second}, {10, 5 * time.Second},
		},
		"shutdownGracePeriod: 5s\nfeatureGates: {GracefulNodeShutdownBasedOnPodPriority: false}": {{0, 5 * time.Second}, {critical, 0}},
	} {
		m, err := New(Config{NodeName: "edge1", RootDir: "/data/kubelet", Kubelet: onAnyCgroups(kubelet)})
		if err != nil {
			t.Errorf("%s: %v", kubelet, err)
			continue
		}
		if diff := cmp.Diff(want, m.Periods()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", kubelet, diff)
		}
		if s := m.server; s.ShutdownGracePeriod.Duration != 0 || s.ShutdownGracePeriodCriticalPods.Duration != 0 || s.ShutdownGracePeriodByPodPriority != nil {
			t.Errorf("%s: the kubelet has %v, %v, %v", kubelet, s.ShutdownGracePeriod, s.ShutdownGracePeriodCriticalPods, s.ShutdownGracePeriodByPodPriority)
		}
	}
}

// After a stop a kubelet's requests fail, those that are under way too, and Run is no failure.
func TestStop(t *testing.T) {
	began, release := make(chan struct{}), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		close(began)
		select { // a watch
		case <-r.Context().Done():
		case <-release:
		}
	}))
	defer server.Close()
	defer close(release)
	g := newGate(http.DefaultTransport)
	client := http.Client{Transport: g}
	answer, err := client.Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	<-began
	g.stop()
	if _, err := io.ReadAll(answer.Body); !errors.Is(err, context.Canceled) {
		t.Errorf("the watch ended by %v", err)
	}
	if _, err := client.Get(server.URL); !errors.Is(err, errStopped) {
		t.Errorf("a request after the stop: %v", err)
	}
	m, err := New(Config{NodeName: "edge1", RootDir: t.TempDir(), Kubelet: onAnyCgroups("{}"), Transport: g, Hold: func(context.Context) error { return errors.New("held") }})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- m.run(ctx, func() { t.Error("it got ready") }) }()
	m.Stop()
	select {
	case err := <-done:
		t.Errorf("it did not wait for its end: %v", err)
	case <-time.After(10 * time.Millisecond):
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestNeeds: each message names the problem and the action, and disappears with its reason.
func TestNeeds(t *testing.T) {
	dir := t.TempDir()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := taken.Addr().(*net.TCPAddr).Port
	socket := filepath.Join(dir, "containerd.sock")
	m, err := New(Config{
		NodeName: "edge1", RootDir: filepath.Join(dir, "file", "root"),
		Kubelet: onAnyCgroups("address: 127.0.0.1\nhealthzPort: 0\nport: " + strconv.Itoa(port) + "\ncontainerRuntimeEndpoint: unix://" + socket),
	})
	if err != nil {
		t.Fatal(err)
	}
	check := func(what string, err error, want ...string) {
		t.Helper()
		for _, part := range want {
			if err == nil || !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %v, want %q", what, err, part)
			}
		}
		if len(want) == 0 && err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}

	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	check("a file in the way", writable(m.RootDir()), "can't be written", "modules.edged.rootDir")
	if err := os.Remove(filepath.Join(dir, "file")); err != nil {
		t.Fatal(err)
	}
	check("the way is free", writable(m.RootDir()))
	if entries, err := os.ReadDir(m.RootDir()); err != nil || len(entries) != 0 {
		t.Errorf("left behind: %v, %v", entries, err)
	}

	reach := func() error { return runtimeReachable(t.Context(), m.runtime) }
	check("no containerd", reach(), "containerd is not running at unix://"+socket, "containerRuntimeEndpoint")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	check("containerd", reach())
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}

	check("port taken", m.portsFree(), "127.0.0.1:"+strconv.Itoa(port)+" is in use by another process", "modules.edged.kubelet.port")
	if err := taken.Close(); err != nil {
		t.Fatal(err)
	}
	check("port free", m.portsFree())
}

// TestIsland_07_FirstBootWithoutALinkWaits: the kubelet isn't started before the API can list its
// pods, and the missing precondition is reported.
func TestIsland_07_FirstBootWithoutALinkWaits(t *testing.T) {
	synced := false
	asked := map[string]int{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked[r.URL.RequestURI()]++
		w.Header().Set("Content-Type", "application/json")
		if !synced {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"ServiceUnavailable","code":503,"message":"not synced"}`))
			return
		}
		kind := "PodList"
		if strings.Contains(r.URL.Path, "nodes") {
			kind = "NodeList"
		}
		_, _ = w.Write([]byte(`{"kind":"` + kind + `","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[]}`))
	}))
	defer server.Close()
	m, err := New(Config{NodeName: "edge1", Host: server.URL, Kubelet: onAnyCgroups("{}")})
	if err != nil {
		t.Fatal(err)
	}
	c, err := m.clients()
	if err != nil {
		t.Fatal(err)
	}
	if err := m.synced(t.Context(), c.kube); !errors.Is(err, errFirstContact) {
		t.Errorf("before the first link: %v", err)
	}
	synced = true
	if err := m.synced(t.Context(), c.kube); err != nil {
		t.Errorf("after it: %v", err)
	}
	want := map[string]int{ // these are the kubelet's own sets: no interest is made for the question alone
		"/api/v1/nodes?fieldSelector=metadata.name%3Dedge1&resourceVersion=0": 2,
		"/api/v1/pods?fieldSelector=spec.nodeName%3Dedge1&resourceVersion=0":  1,
	}
	if diff := cmp.Diff(want, asked); diff != "" {
		t.Errorf("asked (-want +got):\n%s", diff)
	}
}

func TestAwait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, err := New(Config{NodeName: "edge1", Kubelet: onAnyCgroups("{}")})
		if err != nil {
			t.Fatal(err)
		}
		missing := errors.New("containerd is not running")
		met := false
		needs := []need{
			func(context.Context) error { return nil },
			func(context.Context) error {
				if met {
					return nil
				}
				return missing
			},
		}
		done := make(chan error, 1)
		go func() { done <- m.awaitAll(t.Context(), needs) }()
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := m.Waiting(); got != missing {
			t.Errorf("waits for %v, want %v", got, missing)
		}
		met = true
		if err := <-done; err != nil {
			t.Errorf("waited with %v", err)
		}
		if got := m.Waiting(); got != nil {
			t.Errorf("still waits for %v", got)
		}

		met = false
		ctx, cancel := context.WithCancel(t.Context())
		go func() { done <- m.awaitAll(ctx, needs) }()
		synctest.Wait()
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("stopped while waiting: %v", err)
		}
	})
}

func TestRunsOnce(t *testing.T) {
	m, err := New(Config{NodeName: "edge1", RootDir: t.TempDir(), Kubelet: onAnyCgroups("containerRuntimeEndpoint: unix:///nonexistent.sock")})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := m.run(ctx, func() {}); err != nil {
		t.Errorf("stopped while it waited: %v", err)
	}
	if err := m.run(t.Context(), func() {}); !errors.Is(err, errRanBefore) {
		t.Errorf("a second run: %v", err)
	}
}

// TestOneCopyOfTheSchemes: the kubelet and the API's printers share the scheme of internal
// versions; linked together they must not register a kind twice, and a table must still have
// kube-apiserver's columns.
func TestOneCopyOfTheSchemes(t *testing.T) {
	raw, err := object.Encode(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a"}})
	if err != nil {
		t.Fatal(err)
	}
	s := edgeapi.New(edgeapi.Config{NodeName: "edge1", Backend: onePod{raw: raw}})
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/api/v1/pods?resourceVersion=0", nil)
	r.Header.Set("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
	w := httptest.NewRecorder()
	s.Handler(edgeapi.AsDevice).ServeHTTP(w, r)
	if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), "Restarts") {
		t.Errorf("table: %d %s", w.Code, w.Body)
	}
}

// onePod is a backend with a single pod.
type onePod struct {
	edgeapi.Backend
	raw []byte
}

func (b onePod) List(_ context.Context, s object.Selection, _ metamanager.ListOptions) ([]object.Object, uint64, error) {
	const version = 1_700_000_000_000
	return []object.Object{{Ref: object.Ref{Resource: s.Resource, Namespace: "default", Name: "a"}, Version: version, Raw: b.raw}}, version, nil
}

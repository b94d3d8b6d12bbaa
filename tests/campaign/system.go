package campaign

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/tests/campaign/history"
	"github.com/skerry-io/skerry/tests/campaign/line"
	"github.com/skerry-io/skerry/tests/cluster"
	"github.com/skerry-io/skerry/tests/cluster/binary"
	"github.com/skerry-io/skerry/tests/cluster/ca"
	"github.com/skerry-io/skerry/tests/cluster/faultproxy"
	"github.com/skerry-io/skerry/tests/cluster/manifest"
	"github.com/skerry-io/skerry/tests/cluster/process"
)

const namespace = "campaign"

// system is the running system.
type system struct {
	options  Options
	recorder *history.Recorder
	plane    *cluster.ControlPlane
	planeMu  sync.Mutex // held while the plane is ended and started
	client   kubernetes.Interface
	// reported are the resources that devices report of; each edge has a NodeOperation of its own
	// name, of which it reports all the time.
	reported map[string]dynamic.ResourceInterface
	clouds   []*cloudcore
	edges    []*edge
	serving  sync.WaitGroup // proxies and lines
	end      context.CancelFunc
	programs map[string]string
	ends     time.Time    // of the faults
	excuses  atomic.Int32 // that have begun and are not recorded
	real     world        // nil where all are processes of our own
}

// world is the part of a system that a trial replaces.
type world interface {
	// fit makes a pod one that runs there.
	fit(pod *corev1.Pod)
	// break1 breaks and repairs the trial's parts; false leaves it to the system.
	break1(ctx context.Context, step Step) (done bool, err error)
}

// viewed is an edge that has a kubelet.
type viewed interface {
	// run views the edge until ctx ends; its applications work until work does.
	run(ctx, work context.Context)
	// finals reads the edge's content, of pods that the cloud has.
	finals(ctx context.Context, cloud []corev1.Pod, add func(who, node, resource string, o metav1.Object, value int64)) error
}

// cloudcore is one replica, with its own way to kube-apiserver.
type cloudcore struct {
	daemon
	proxy           *faultproxy.Proxy
	watches         atomic.Int64 // that it has opened
	websocket, join string
}

// edge is one device, with its own way to the cloud.
type edge struct {
	daemon
	name   string
	store  string // its file
	disk   string // "" where it is the machine's
	line   *line.Line
	client kubernetes.Interface // its kubelet's
	device viewed               // nil where it has no kubelet
	onces  onces
}

// start brings everything up. The returned system is to be stopped also with an error.
func start(ctx context.Context, o Options) (*system, error) {
	ctx, end := context.WithCancel(ctx)
	s := &system{options: o, recorder: history.NewRecorder(), end: end}
	root, err := binary.Root()
	if err != nil {
		return s, err
	}
	if s.programs, err = build(ctx, root, o.Changed); err != nil {
		return s, err
	}
	if slices.Contains(o.Faults, Clock) {
		dir, err := s.dir("programs")
		if err == nil {
			err = prepareClock(ctx, root, dir, s.programs)
		}
		if err != nil {
			return s, err
		}
	}
	if err := s.startPlane(ctx, root); err != nil {
		return s, err
	}
	for n := range o.Clouds {
		if err := s.addCloud(ctx, n); err != nil {
			return s, err
		}
	}
	token, err := command(ctx, s.programs["cloudcore"], "token", "create", "--kubeconfig", s.plane.Kubeconfig, "--uses", strconv.Itoa(o.Edges))
	if err != nil {
		return s, err
	}
	for n := range o.Edges {
		if err := s.addEdge(ctx, n, strings.TrimSpace(token)); err != nil {
			return s, err
		}
	}
	return s, nil
}

func (s *system) stop() {
	ctx := context.Background()
	for _, e := range s.edges {
		_ = e.kill(ctx)
		unmountDisk(e.disk)
	}
	for _, c := range s.clouds {
		_ = c.kill(ctx)
	}
	if s.plane != nil {
		_ = s.plane.Kill(ctx)
	}
	s.end()
	s.serving.Wait()
	_ = os.RemoveAll(filepath.Join(s.options.Dir, "programs"))
}

func (s *system) dir(name string) (string, error) {
	dir := filepath.Join(s.options.Dir, name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("making the directory of %s: %w", name, err)
	}
	return dir, nil
}

func (s *system) startPlane(ctx context.Context, root string) error {
	dir, err := s.dir("plane")
	if err != nil {
		return err
	}
	if s.plane, err = cluster.New(ctx, dir, s.options.Plane...); err != nil {
		return err
	}
	s.client = s.plane.Client()
	own, err := dynamic.NewForConfig(s.plane.Admin())
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	for _, m := range []string{"manifests/crds", "manifests/cloudcore"} {
		objects, err := manifest.Build(filepath.Join(root, m))
		if err != nil {
			return err
		}
		if err := manifest.Apply(ctx, s.plane.Admin(), objects...); err != nil {
			return err
		}
	}
	if s.reported, err = reportedResources(ctx, own); err != nil {
		return err
	}
	_, err = s.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("making the namespace: %w", err)
	}
	return await(ctx, "the default ServiceAccount", func(ctx context.Context) error {
		_, err := s.client.CoreV1().ServiceAccounts(namespace).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
}

// serve runs something until the campaign ends.
func (s *system) serve(ctx context.Context, f func(context.Context) error) {
	s.serving.Go(func() { _ = f(ctx) })
}

// addProxy puts a fault proxy in front of kube-apiserver and gives its address.
func (s *system) addProxy(ctx context.Context) (*faultproxy.Proxy, string, error) {
	target, err := url.Parse(s.plane.Server)
	if err != nil {
		return nil, "", fmt.Errorf("the server's address: %w", err)
	}
	proxy, err := faultproxy.New(target, s.plane.CA(), new(net.Dialer).DialContext)
	if err != nil {
		return nil, "", err
	}
	cert, key, err := ca.Server(s.plane.CAFile(), s.plane.CAKeyFile(), pkix.Name{CommonName: "kube-apiserver"}, nil, netip.MustParseAddr("127.0.0.1"))
	if err != nil {
		return nil, "", err
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, "", fmt.Errorf("reading the proxy's certificate: %w", err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, "", fmt.Errorf("listening for the proxy: %w", err)
	}
	s.serve(ctx, func(ctx context.Context) error { return proxy.Serve(ctx, l, pair) })
	return proxy, "https://" + l.Addr().String(), nil
}

// decide replaces the proxy's decisions on requests; nil lets all pass.
func (c *cloudcore) decide(f func(*http.Request) faultproxy.Fault) {
	c.proxy.Set(func(r *http.Request) faultproxy.Fault {
		if faultproxy.Watch(r) {
			c.watches.Add(1)
		}
		if f == nil {
			return faultproxy.Fault{}
		}
		return f(r)
	})
}

// countWatches records how many watches a cloudcore opens, until ctx ends.
func (s *system) countWatches(ctx context.Context, c *cloudcore, name string) error {
	for ctx.Err() == nil {
		r := history.Record{Kind: history.Load, Who: name, At: s.recorder.Now()}
		before := c.watches.Load()
		pause(ctx, 5*time.Second)
		r.Value, r.End = c.watches.Load()-before, s.recorder.Now()
		s.recorder.Add(r)
	}
	return nil
}

const cloudcoreFile = `apiVersion: config.skerry.io/v1alpha1
kind: CloudCore
kubeconfig: %s
approver: {kubeconfig: %s}
advertise: [127.0.0.1]
devices: {listen: ""}
hub:
  websocket: {listen: "%s"}
  quic: {listen: ""}%s
join: {listen: "%s"}
tunnel: {listen: ""}
relay: {leaseRenewal: 10s} # where nodes must stay Ready, the grace is half of the usual 50 s
health: {listen: "%s"}
`

func (s *system) addCloud(ctx context.Context, n int) error {
	name := fmt.Sprintf("cloud%d", n+1)
	dir, err := s.dir(name)
	if err != nil {
		return err
	}
	c := &cloudcore{}
	var server string
	if c.proxy, server, err = s.addProxy(ctx); err != nil {
		return err
	}
	kubeconfig := map[string]string{}
	for _, account := range []string{"cloudcore", "cloudcore-approver"} {
		token, err := s.client.CoreV1().ServiceAccounts(v1alpha1.SystemNamespace).CreateToken(ctx, account, &authenticationv1.TokenRequest{
			Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: new(int64(24 * 3600))}, // the usual hour is less than a long campaign takes
		}, metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("making the token of %s: %w", account, err)
		}
		cfg := &rest.Config{Host: server, BearerToken: token.Status.Token, TLSClientConfig: rest.TLSClientConfig{CAData: s.plane.CA()}}
		kubeconfig[account] = filepath.Join(dir, account+".kubeconfig")
		if err := cluster.WriteKubeconfig(cfg, kubeconfig[account]); err != nil {
			return err
		}
	}
	ports, err := cluster.FreeAddresses("tcp", "tcp", "tcp")
	if err != nil {
		return err
	}
	c.websocket, c.join = ports[0], ports[1]
	file, pace := filepath.Join(dir, "cloudcore.yaml"), "\n  keepalive: 1s\n  idleTimeout: 4s"
	if s.options.Keepalive != nil {
		pace = "" // cloudcore's own
	}
	if err := os.WriteFile(file, fmt.Appendf(nil, cloudcoreFile, kubeconfig["cloudcore"], kubeconfig["cloudcore-approver"], ports[0], pace, ports[1], ports[2]), 0o600); err != nil {
		return fmt.Errorf("writing cloudcore.yaml: %w", err)
	}
	c.spec = process.Spec{Path: s.programs["cloudcore"], Env: s.options.Env, Args: []string{"--config", file}, Log: filepath.Join(dir, "log"), Bound: true}
	c.ready = func(ctx context.Context) error { return answers(ctx, "http://"+ports[2]+"/readyz") }
	s.clouds = append(s.clouds, c)
	c.decide(nil)
	s.serve(ctx, func(ctx context.Context) error { return s.countWatches(ctx, c, name) })
	return c.start(ctx)
}

const edgecoreFile = `apiVersion: config.skerry.io/v1alpha1
kind: EdgeCore
dataDir: %s
health: {listen: ""}
modules:
  edgeHub: {servers: [127.0.0.1], transport: websocket, websocket: {port: %d}, keepalive: %v, idleTimeout: %v, backoffMin: 200ms, backoffMax: 2s}
  edged: {enable: false, hostnameOverride: %s, reportEvent: true}
  edgeAPI: {enable: false}
  route: {enable: false}
  vip: {enable: false}
  drain: {enable: false}
`

func (s *system) addEdge(ctx context.Context, n int, token string) error {
	e := &edge{name: fmt.Sprintf("edge%d", n+1)}
	s.edges = append(s.edges, e) // first, so that stop finds it
	dir, err := s.dir(e.name)
	if err != nil {
		return err
	}
	var servers []string
	for _, c := range s.clouds {
		servers = append(servers, c.websocket)
	}
	if e.line, err = line.Listen(servers...); err != nil {
		return err
	}
	s.serve(ctx, e.line.Serve)
	keepalive, idle := time.Second, 4*time.Second
	if s.options.Keepalive != nil {
		keepalive = s.options.Keepalive[n]
		idle = 3 * keepalive
	}
	file, socket, data := filepath.Join(dir, "edgecore.yaml"), filepath.Join(dir, "sock"), filepath.Join(dir, "data")
	if slices.Contains(s.options.Faults, Full) {
		if err := mountDisk(data); err != nil {
			return err
		}
		e.disk = data
	}
	text := fmt.Appendf(nil, edgecoreFile, data, e.line.Port(), keepalive, idle, e.name)
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return fmt.Errorf("writing edgecore.yaml: %w", err)
	}
	if _, err := command(ctx, s.programs["edgecore"], "join", "--config", file, "--token", token, "--node-name", e.name, s.clouds[0].join); err != nil {
		return err
	}
	e.client, err = kubernetes.NewForConfig(&rest.Config{
		Host: "http://" + e.name, QPS: -1, UserAgent: "kubelet",
		Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	})
	if err != nil {
		return fmt.Errorf("making the client of %s: %w", e.name, err)
	}
	e.store = filepath.Join(data, "store.db")
	e.spec = process.Spec{Path: s.programs["hollowedge"], Env: s.options.Env, Args: []string{"--config", file, "--socket", socket}, Log: filepath.Join(dir, "log"), Bound: true}
	e.ready = func(ctx context.Context) error {
		c, err := new(net.Dialer).DialContext(ctx, "unix", socket)
		if err == nil {
			c.Close()
		}
		return err
	}
	return e.start(ctx)
}

// awaitEdges waits until each edge answers for its pods.
func (s *system) awaitEdges(ctx context.Context) error {
	for _, e := range s.edges {
		err := await(ctx, e.name+" to be in step", func(ctx context.Context) error {
			if _, err := s.client.CoreV1().Nodes().Get(ctx, e.name, metav1.GetOptions{}); err != nil {
				return err
			}
			_, err := e.client.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + e.name})
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// sessionOpened is edgecore's log message when it has a link.
const sessionOpened = "Session opened"

// count is how often a text is in the edge's log.
func (e *edge) count(text string) int {
	log, err := os.ReadFile(e.spec.Log)
	if err != nil {
		return 0
	}
	return bytes.Count(log, []byte(text))
}

func answers(ctx context.Context, url string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return errors.New(response.Status)
	}
	return nil
}

package kubeplane

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/pflag"
	"go.etcd.io/etcd/server/v3/embed"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	cliflag "k8s.io/component-base/cli/flag"
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // client-go's metrics, as the upstream commands register them
	_ "k8s.io/component-base/metrics/prometheus/version"  // the build's version as a metric
	apiapp "k8s.io/kubernetes/cmd/kube-apiserver/app"
	apioptions "k8s.io/kubernetes/cmd/kube-apiserver/app/options"
	controllerapp "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	controlleroptions "k8s.io/kubernetes/cmd/kube-controller-manager/app/options"
	schedulerapp "k8s.io/kubernetes/cmd/kube-scheduler/app"
	scheduleroptions "k8s.io/kubernetes/cmd/kube-scheduler/app/options"
)

const (
	// startTimeout bounds the way to readiness; a loaded machine with a cold disk needs some 20 s.
	startTimeout = 2 * time.Minute
	// stopTimeout bounds the stop of one component. kube-apiserver waits for requests under way,
	// up to a minute.
	stopTimeout = 10 * time.Second
	// pollInterval is how often the start looks whether the next step may come.
	pollInterval = 20 * time.Millisecond
	// auditPolicy logs the user and the request once it was answered, without bodies; health checks
	// are no measure of load.
	auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted]
rules:
- level: None
  nonResourceURLs: ["/healthz*", "/livez*", "/readyz*", "/openapi*", "/version"]
- level: Metadata
`
)

// plane is a control plane that runs.
type plane struct {
	// Set by Run, never changed.
	cfg      Config
	start    time.Time
	listener net.Listener
	port     uint16
	server   string
	keys     *keys
	etcdURL  string
	failed   chan error // a component that ended by itself; one slot each

	outMu sync.Mutex
	out   io.Writer
}

// component is one part that runs until stop is called.
type component struct {
	name string
	stop context.CancelFunc
	done chan struct{}
}

func (p *plane) step(what string) {
	p.outMu.Lock()
	defer p.outMu.Unlock()
	fmt.Fprintf(p.out, "[%6.2fs] %s\n", time.Since(p.start).Seconds(), what)
}

// run starts everything in order, calls ready, waits, and stops everything in reverse order.
func (p *plane) run(ctx context.Context, ready func() error) (err error) {
	etcd, err := p.startEtcd(ctx)
	if err != nil {
		return err
	}
	defer etcd.Close()
	p.step("etcd serves on " + p.etcdURL)

	var running []component
	defer func() {
		for i := len(running) - 1; i >= 0; i-- {
			p.stop(running[i])
		}
	}()

	if p.cfg.EgressListen != "" {
		b, err := newBalancer(p.cfg.EgressListen, p.cfg.EgressTo)
		if err != nil {
			return err
		}
		running = append(running, p.launch("the egress balancer", b.run))
	}
	apiserver, err := p.apiserver()
	if err != nil {
		return err
	}
	running = append(running, p.launch("kube-apiserver", apiserver))
	client, err := p.awaitAPI(ctx)
	if err != nil {
		return err
	}
	p.step("kube-apiserver is ready on " + p.server)

	controllers, err := p.controllerManager()
	if err != nil {
		return err
	}
	running = append(running, p.launch("kube-controller-manager", controllers))
	scheduler, err := p.scheduler()
	if err != nil {
		return err
	}
	running = append(running, p.launch("kube-scheduler", scheduler))
	p.step("kube-controller-manager and kube-scheduler are started")

	// Pods are refused until the controller made this account.
	err = p.poll(ctx, "the default ServiceAccount", func(ctx context.Context) error {
		_, err := client.CoreV1().ServiceAccounts(corev1.NamespaceDefault).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
	if err != nil {
		return err
	}
	if p.cfg.Owner != 0 {
		if err := lend(ctx, etcd, p.cfg.Dir, p.cfg.Idle); err != nil {
			return err
		}
	}
	if err := ready(); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-p.failed:
		return err
	case err := <-etcd.Err():
		return fmt.Errorf("etcd: %w", err)
	}
}

// launch runs a component in a goroutine that ends with stop.
func (p *plane) launch(name string, run func(context.Context) error) component {
	ctx, cancel := context.WithCancel(context.Background())
	c := component{name: name, stop: cancel, done: make(chan struct{})}
	go func() {
		defer close(c.done)
		err := run(ctx)
		if ctx.Err() != nil {
			return // asked to
		}
		if err == nil {
			err = errors.New("ended without a reason")
		}
		p.failed <- fmt.Errorf("%s: %w", name, err)
	}()
	return c
}

func (p *plane) stop(c component) {
	c.stop()
	select {
	case <-c.done:
		p.step(c.name + " is stopped")
	case <-time.After(stopTimeout):
		p.step(fmt.Sprintf("%s did not stop within %v, going on", c.name, stopTimeout))
	}
}

// poll repeats try until it succeeds, a component fails, time is up or ctx ends.
func (p *plane) poll(ctx context.Context, what string, try func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	var last error
	err := wait.PollUntilContextCancel(ctx, pollInterval, true, func(ctx context.Context) (bool, error) {
		select {
		case err := <-p.failed:
			return false, err
		default:
		}
		last = try(ctx)
		return last == nil, nil
	})
	if err != nil {
		return fmt.Errorf("waiting for %s: %w", what, errors.Join(err, last))
	}
	return nil
}

func (p *plane) startEtcd(ctx context.Context) (*embed.Etcd, error) {
	cfg := embed.NewConfig()
	cfg.Dir = filepath.Join(p.cfg.Dir, "etcd")
	cfg.LogLevel = "error"
	cfg.UnsafeNoFsync = !p.cfg.Fsync
	client := url.URL{Scheme: "http", Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(int(p.cfg.EtcdPort)))}
	// Peers are never dialled: the address only has to stay the same over restarts.
	peer := url.URL{Scheme: "http", Host: "127.0.0.1:0"}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	cfg.InitialCluster = cfg.Name + "=" + peer.String()
	etcd, err := embed.StartEtcd(cfg)
	if err != nil {
		return nil, fmt.Errorf("starting etcd: %w", err)
	}
	select {
	case <-etcd.Server.ReadyNotify():
		p.etcdURL = "http://" + etcd.Clients[0].Addr().String()
		return etcd, nil
	case err := <-etcd.Err():
		etcd.Close()
		return nil, fmt.Errorf("starting etcd: %w", err)
	case <-ctx.Done():
		etcd.Close()
		return nil, fmt.Errorf("starting etcd: %w", context.Cause(ctx))
	}
}

// apiserver prepares kube-apiserver. Upstream's cobra commands can't be combined, since each
// installs the one signal handler of a process; its option structs can.
func (p *plane) apiserver() (func(context.Context) error, error) {
	k := p.keys
	args := []string{
		"--etcd-servers=" + p.etcdURL,
		"--bind-address=" + p.cfg.Bind.String(), "--secure-port=" + strconv.Itoa(int(p.port)), "--advertise-address=" + p.cfg.Advertise.String(),
		"--service-cluster-ip-range=" + p.cfg.ServiceCIDR.String() + "," + p.cfg.SecondServiceCIDR.String(),
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--enable-bootstrap-token-auth=true",
		"--client-ca-file=" + k.path("ca.crt"),
		"--tls-cert-file=" + k.path(identityServing+".crt"), "--tls-private-key-file=" + k.path(identityServing+".key"),
		"--kubelet-client-certificate=" + k.path(identityKubelet+".crt"), "--kubelet-client-key=" + k.path(identityKubelet+".key"),
		"--kubelet-certificate-authority=" + k.path("ca.crt"),
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + k.path("sa.pub"), "--service-account-signing-key-file=" + k.path("sa.key"),
		"--allow-privileged=true",
		"--requestheader-client-ca-file=" + k.path("ca.crt"), "--requestheader-allowed-names=front-proxy-client",
		"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=" + k.path(identityFrontProxy+".crt"), "--proxy-client-key-file=" + k.path(identityFrontProxy+".key"),
	}
	if p.cfg.Advertise.IsLoopback() {
		// An Endpoints object must not name a loopback address.
		args = append(args, "--endpoint-reconciler-type=none")
	}
	const kubelets = "--kubelet-preferred-address-types="
	if !slices.ContainsFunc(p.cfg.APIServerArgs, func(arg string) bool { return strings.HasPrefix(arg, kubelets) }) {
		args = append(args, kubelets+"InternalIP,Hostname") // a second such flag would add to the first
	}
	if p.cfg.Quick {
		args = append(args, "--default-unreachable-toleration-seconds=10", "--default-not-ready-toleration-seconds=10")
	}
	if p.cfg.EgressSelector != "" {
		args = append(args, "--egress-selector-config-file="+p.cfg.EgressSelector)
	}
	if p.cfg.Audit != "" {
		policy := filepath.Join(p.cfg.Dir, "audit-policy.yaml")
		if err := os.WriteFile(policy, []byte(auditPolicy), 0o600); err != nil {
			return nil, fmt.Errorf("writing the audit policy: %w", err)
		}
		args = append(args, "--audit-policy-file="+policy, "--audit-log-path="+p.cfg.Audit)
	}

	o := apioptions.NewServerRunOptions()
	if err := parse("kube-apiserver", o.Flags(), append(args, p.cfg.APIServerArgs...)); err != nil {
		return nil, err
	}
	o.SecureServing.Listener = p.listener
	if err := o.GenericServerRunOptions.ComponentGlobalsRegistry.Set(); err != nil {
		return nil, fmt.Errorf("setting the feature gates: %w", err)
	}
	// As upstream's command does: the API server's own clients should not log warnings it
	// gave to itself.
	rest.SetDefaultWarningHandler(rest.NoWarnings{})
	return func(ctx context.Context) error {
		completed, err := o.Complete(ctx)
		if err != nil {
			return err
		}
		if errs := completed.Validate(); len(errs) > 0 {
			return utilerrors.NewAggregate(errs)
		}
		return apiapp.Run(ctx, completed)
	}, nil
}

func (p *plane) controllerManager() (func(context.Context) error, error) {
	kubeconfig := p.keys.path(identityController + ".kubeconfig")
	if err := p.keys.kubeconfig(identityController, p.server, kubeconfig); err != nil {
		return nil, err
	}
	args := []string{
		"--kubeconfig=" + kubeconfig, "--authentication-kubeconfig=" + kubeconfig, "--authorization-kubeconfig=" + kubeconfig,
		"--leader-elect=false", "--secure-port=0", // it has no clients, and two control planes fit in one network namespace
		"--use-service-account-credentials=true",
		// At the default of 20 requests a second, making the controllers' ServiceAccounts alone
		// takes 5 s of the first start.
		"--kube-api-qps=500", "--kube-api-burst=1000",
		"--controllers=*,bootstrapsigner,tokencleaner", // join tokens are bootstrap tokens: expired ones are removed
		"--service-account-private-key-file=" + p.keys.path("sa.key"), "--root-ca-file=" + p.keys.path("ca.crt"),
		"--cluster-signing-cert-file=" + p.keys.path("ca.crt"), "--cluster-signing-key-file=" + p.keys.path("ca.key"),
	}
	if p.cfg.Quick {
		args = append(args, "--node-monitor-grace-period=12s", "--node-monitor-period=2s")
	}
	o, err := controlleroptions.NewKubeControllerManagerOptions()
	if err != nil {
		return nil, fmt.Errorf("kube-controller-manager: %w", err)
	}
	known, disabled, aliases := controllerapp.KnownControllers(), controllerapp.ControllersDisabledByDefault(), controllerapp.ControllerAliases()
	flags := o.Flags(known, disabled, aliases)
	o.ParsedFlags = &flags
	if err := parse("kube-controller-manager", flags, append(args, p.cfg.ControllerArgs...)); err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		c, err := o.Config(ctx, known, disabled, aliases)
		if err != nil {
			return err
		}
		return controllerapp.Run(ctx, c.Complete())
	}, nil
}

func (p *plane) scheduler() (func(context.Context) error, error) {
	kubeconfig := p.keys.path(identityScheduler + ".kubeconfig")
	if err := p.keys.kubeconfig(identityScheduler, p.server, kubeconfig); err != nil {
		return nil, err
	}
	args := []string{
		"--kubeconfig=" + kubeconfig, "--authentication-kubeconfig=" + kubeconfig, "--authorization-kubeconfig=" + kubeconfig,
		"--leader-elect=false", "--secure-port=0",
	}
	o := scheduleroptions.NewOptions()
	if err := parse("kube-scheduler", *o.Flags, append(args, p.cfg.SchedulerArgs...)); err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		c, scheduler, err := schedulerapp.Setup(ctx, o)
		if err != nil {
			return err
		}
		return schedulerapp.Run(ctx, c, scheduler)
	}, nil
}

// awaitAPI waits for /readyz. It dials the address we advertise, so that a wrong one is found here
// and not by the first node.
func (p *plane) awaitAPI(ctx context.Context) (kubernetes.Interface, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", filepath.Join(p.cfg.Dir, "admin.kubeconfig"))
	if err != nil {
		return nil, fmt.Errorf("reading the administrator's kubeconfig: %w", err)
	}
	cfg.Timeout = 5 * time.Second
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("making a client: %w", err)
	}
	err = p.poll(ctx, "kube-apiserver", func(ctx context.Context) error {
		body, err := client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
		if status := apierrors.APIStatus(nil); errors.As(err, &status) && len(body) > 0 {
			return fmt.Errorf("%w: %s", err, body)
		}
		return err
	})
	return client, err
}

// parse sets a component's options from arguments in its own spelling.
func parse(component string, sets cliflag.NamedFlagSets, args []string) error {
	flags := pflag.NewFlagSet(component, pflag.ContinueOnError)
	flags.SetOutput(io.Discard)
	for _, s := range sets.FlagSets {
		flags.AddFlagSet(s)
	}
	if err := flags.Parse(args); err != nil {
		return fmt.Errorf("%s: %w", component, err)
	}
	return nil
}

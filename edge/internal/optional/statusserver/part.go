package statusserver

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// readTimeout bounds the reads of one part at the edge API.
const readTimeout = 2 * time.Second

// Knowledge is the age of the data.
type Knowledge struct {
	Linked bool `json:"linked"`
	// AsOf is the time of the last contact with the cloud: now, or when the link was lost.
	AsOf time.Time `json:"asOf"`
}

// Part is one part of a page.
type Part struct {
	Key   string `json:"key"`
	Exist *bool  `json:"exist,omitempty"` // false, and no value, where there is no such thing
	Value any    `json:"value,omitempty"`
	// Problem is why a part could not be read.
	Problem string `json:"problem,omitempty"`
}

// Page describes an application.
type Page struct {
	Hostname    string    `json:"hostname"`
	CollectTime time.Time `json:"collectTime"`
	Knowledge   Knowledge `json:"knowledge"`
	AppInfo     []Part    `json:"appInfo"`
}

// reader reads the data of pages.
type reader struct {
	config Config
	kube   kubernetes.Interface
	apps   dynamic.NamespaceableResourceInterface
}

func newReader(config Config) (*reader, error) {
	client, err := kubernetes.NewForConfig(config.API)
	if err != nil {
		return nil, fmt.Errorf("client of the edge API: %w", err)
	}
	dyn, err := dynamic.NewForConfig(config.API)
	if err != nil {
		return nil, fmt.Errorf("client of the edge API: %w", err)
	}
	return &reader{config, client, dyn.Resource(v1alpha1.Resource(v1alpha1.EdgeApps))}, nil
}

func (r *reader) knowledge() Knowledge {
	linked, last := r.config.Contact()
	return Knowledge{linked, last}
}

// server reports whether this node is a server of the cluster.
func (r *reader) server(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	n, err := r.kube.CoreV1().Nodes().Get(ctx, r.config.NodeName, metav1.GetOptions{})
	if err != nil {
		return false
	}
	has := func(role string) bool { _, ok := n.Labels["node-role.kubernetes.io/"+role]; return ok }
	return has("etcd") && (has("control-plane") || has("master"))
}

// errAmbiguous: several applications have that name.
var errAmbiguous = errors.New("several applications have that name: ask for NAMESPACE/NAME or the uid")

// find looks for an application by NAME, NAMESPACE/NAME or its whole uid; nil: not found.
func (r *reader) find(ctx context.Context, name string) (*v1alpha1.EdgeApp, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	list, err := r.apps.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("listing applications: %w", err)
	}
	var found *v1alpha1.EdgeApp
	for i := range list.Items {
		u := &list.Items[i]
		if name != u.GetName() && name != u.GetNamespace()+"/"+u.GetName() && name != string(u.GetUID()) {
			continue
		}
		if found != nil {
			return nil, errAmbiguous
		}
		found = &v1alpha1.EdgeApp{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, found); err != nil {
			return nil, fmt.Errorf("reading application %s: %w", name, err)
		}
	}
	return found, nil
}

// page returns the data on an application; without a name only that of the device.
func (r *reader) page(ctx context.Context, name string) (p *Page, code int, err error) {
	p = &Page{Hostname: r.config.NodeName, CollectTime: time.Now().UTC(), Knowledge: r.knowledge()}
	add := func(key string, read func(context.Context) (any, error)) {
		ctx, cancel := context.WithTimeout(ctx, readTimeout)
		defer cancel()
		p.AppInfo = append(p.AppInfo, part(ctx, key, read))
	}
	add("node-info", r.nodeInfo)
	add("cluster-status", func(ctx context.Context) (any, error) {
		return map[string]any{"cluster": r.config.ClusterID, "server": r.server(ctx)}, nil
	})
	add("leader-election", r.leader)
	add("install-log", func(context.Context) (any, error) { return tail(r.config.InstallLog, 10) })
	if name == "" {
		return p, http.StatusOK, nil
	}
	app, err := r.find(ctx, name)
	switch {
	case errors.Is(err, errAmbiguous):
		return nil, http.StatusConflict, err
	case err != nil:
		return nil, http.StatusServiceUnavailable, err
	case app == nil:
		return nil, http.StatusNotFound, fmt.Errorf("there is no application %q on this device", name)
	}
	var pods []corev1.Pod
	podsOf := func(ctx context.Context) (any, error) {
		list, err := r.kube.CoreV1().Pods(app.Namespace).List(ctx, metav1.ListOptions{
			LabelSelector: v1alpha1.EdgeAppLabel + "=" + app.Name, FieldSelector: "spec.nodeName=" + r.config.NodeName,
		})
		if err != nil {
			return nil, err
		}
		pods = list.Items
		return podStates(pods), nil
	}
	held := part(ctx, "pods", podsOf)
	add("app-config", func(context.Context) (any, error) { return appConfig(app), nil })
	add("volumes", func(ctx context.Context) (any, error) { return r.volumes(ctx, app) })
	add("networks", func(context.Context) (any, error) { return networks(pods), nil })
	add("cluster-app-status", func(context.Context) (any, error) {
		return map[string]any{"isDesignated": app.Spec.DesignatedNode == r.config.NodeName, "scheduledOnThisNode": scheduled(pods)}, nil
	})
	add("images", func(context.Context) (any, error) { return images(pods), nil })
	p.AppInfo = append(p.AppInfo, held)
	add("resource-use", func(context.Context) (any, error) { return requested(pods), nil })
	return p, http.StatusOK, nil
}

// part reads one part; one that fails or is missing has an error and holds back no other.
func part(ctx context.Context, key string, read func(context.Context) (any, error)) Part {
	v, err := read(ctx)
	no := false
	switch {
	case apierrors.IsNotFound(err), errors.Is(err, os.ErrNotExist):
		return Part{Key: key, Exist: &no}
	case err != nil:
		return Part{Key: key, Exist: &no, Problem: err.Error()}
	case v == nil:
		return Part{Key: key, Exist: &no}
	}
	return Part{Key: key, Value: v}
}

func (r *reader) nodeInfo(ctx context.Context) (any, error) {
	n, err := r.kube.CoreV1().Nodes().Get(ctx, r.config.NodeName, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return map[string]any{"name": n.Name, "uid": n.UID, "labels": n.Labels, "addresses": n.Status.Addresses, "info": n.Status.NodeInfo}, nil
}

func (r *reader) leader(context.Context) (any, error) {
	if r.config.Leader == nil {
		return nil, nil
	}
	return r.config.Leader(), nil
}

// tail is the last lines of a file, of whose end it reads 64 KiB at most.
func tail(path string, lines int) (any, error) {
	if path == "" {
		return nil, os.ErrNotExist
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // it was only read
	const most = 64 << 10
	if info, err := file.Stat(); err == nil && info.Size() > most {
		if _, err := file.Seek(-most, 2); err != nil {
			return nil, err
		}
	}
	var all []string
	scanner := bufio.NewScanner(file)
	scanner.Buffer(nil, most)
	for scanner.Scan() {
		all = append(all, strings.ToValidUTF8(scanner.Text(), "?"))
	}
	return all[max(0, len(all)-lines):], scanner.Err()
}

// appConfig is the spec of an application, without the template: its environment may
// have secrets.
func appConfig(app *v1alpha1.EdgeApp) any {
	spec := app.Spec.DeepCopy()
	spec.Template.Raw = nil
	return map[string]any{"namespace": app.Namespace, "name": app.Name, "uid": app.UID, "generation": app.Generation, "spec": spec}
}

func (r *reader) volumes(ctx context.Context, app *v1alpha1.EdgeApp) (any, error) {
	var all []any
	for _, v := range app.Spec.Volumes {
		name := app.Name + "-" + v.Name
		all = append(all, part(ctx, name, func(ctx context.Context) (any, error) {
			c, err := r.kube.CoreV1().PersistentVolumeClaims(app.Namespace).Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return nil, err
			}
			return map[string]any{"volume": c.Spec.VolumeName, "phase": c.Status.Phase, "replicated": v.Replicated}, nil
		}))
	}
	if all == nil {
		return nil, nil
	}
	return all, nil
}

func scheduled(pods []corev1.Pod) bool {
	for _, p := range pods {
		if p.DeletionTimestamp == nil {
			return true
		}
	}
	return false
}

func podStates(pods []corev1.Pod) any {
	var all []any
	for _, p := range pods {
		all = append(all, map[string]any{"name": p.Name, "uid": p.UID, "phase": p.Status.Phase, "deleted": p.DeletionTimestamp != nil, "containers": p.Status.ContainerStatuses})
	}
	if all == nil {
		return nil
	}
	return all
}

func networks(pods []corev1.Pod) any {
	var all []any
	for _, p := range pods {
		if len(p.Status.PodIPs) > 0 {
			all = append(all, map[string]any{"pod": p.Name, "addresses": p.Status.PodIPs})
		}
	}
	if all == nil {
		return nil
	}
	return all
}

func images(pods []corev1.Pod) any {
	var all []any
	for _, p := range pods {
		for _, c := range p.Status.ContainerStatuses {
			all = append(all, map[string]any{"container": c.Name, "image": c.Image, "id": c.ImageID})
		}
	}
	if all == nil {
		return nil
	}
	return all
}

// requested are the limits of the application's containers.
func requested(pods []corev1.Pod) any {
	var all []any
	for _, p := range pods {
		for _, c := range p.Spec.Containers {
			all = append(all, map[string]any{"container": c.Name, "resources": c.Resources})
		}
	}
	if all == nil {
		return nil
	}
	return all
}

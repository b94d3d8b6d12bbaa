package app

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/skerry-io/skerry/common/version"
	"github.com/skerry-io/skerry/edge/internal/agents/flightrecorder"
	"github.com/skerry-io/skerry/edge/internal/core/object"
	"github.com/skerry-io/skerry/edge/internal/kernel/host/program"
	"github.com/skerry-io/skerry/edge/internal/setup/bundle"
	edgeconfig "github.com/skerry-io/skerry/edge/internal/setup/config"
)

// BundlePath is where the running edgecore is asked for a support bundle, on its unix socket.
const BundlePath = "/skerry/v1/bundle"

// maxObjects bounds how many objects of a resource are in a bundle.
const maxObjects = 1000

// held returns the objects of a resource that the device holds.
type held func(ctx context.Context, resource schema.GroupVersionResource) ([]object.Object, error)

// bundled has the sources of a bundle, whether edgecore runs or not.
type bundled struct {
	config *edgeconfig.Config
	node   string
	status func(accept string) ([]byte, error)
	events func(ctx context.Context) ([]corev1.Event, error)
	held   held
}

func (a *App) bundled() bundled {
	heldBy := func(_ context.Context, resource schema.GroupVersionResource) ([]object.Object, error) {
		return a.core.meta.All(resource), nil
	}
	return bundled{
		config: a.config, node: a.node, held: heldBy,
		status: func(accept string) ([]byte, error) {
			if a.statusFor == nil {
				return nil, errors.New("this program shows no status")
			}
			body, _, err := a.statusFor(accept)
			return body, err
		},
		events: func(ctx context.Context) (events []corev1.Event, err error) {
			items, err := heldBy(ctx, corev1.SchemeGroupVersion.WithResource("events"))
			for _, o := range items {
				if decoded, err := object.Decode(o); err == nil {
					if e, ok := decoded.(*corev1.Event); ok {
						events = append(events, *e)
					}
				}
			}
			return events, err
		},
	}
}

// WriteBundle packs a support bundle of this device; most bounds each file, in bytes.
func (a *App) WriteBundle(ctx context.Context, w io.Writer, most int) error {
	if !a.bundling.TryLock() { // each takes memory for its largest file, several times over
		return errors.New("another bundle is being packed: try again in a minute")
	}
	defer a.bundling.Unlock()
	return a.bundled().write(ctx, w, most)
}

func (a *App) handleBundle(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/gzip")
	w.WriteHeader(http.StatusOK)
	_ = http.NewResponseController(w).Flush() // edgecore answers: the command need not pack one itself
	if err := a.WriteBundle(r.Context(), w, bundle.MaxFile); err != nil {
		panic(http.ErrAbortHandler) // so that a partial one is not taken for complete
	}
}

var secrets = corev1.SchemeGroupVersion.WithResource("secrets")

// bundledObjects are the resources whose objects are in a bundle: those that edgecore computes the
// kernel's state from.
func bundledObjects() []schema.GroupVersionResource {
	all := []schema.GroupVersionResource{
		corev1.SchemeGroupVersion.WithResource("nodes"), corev1.SchemeGroupVersion.WithResource("pods"),
		corev1.SchemeGroupVersion.WithResource("services"), discoveryv1.SchemeGroupVersion.WithResource("endpointslices"),
	}
	for _, name := range []string{"staticroutes", "virtualips", "edgeapps"} {
		all = append(all, schema.GroupVersionResource{Group: "skerry.io", Version: "v1alpha1", Resource: name})
	}
	return all
}

func (b bundled) write(ctx context.Context, w io.Writer, most int) error {
	files := b.files()
	values, err := b.secretValues(ctx)
	if err != nil { // files that may quote a Secret stay out
		files = slices.DeleteFunc(files, func(f bundle.File) bool {
			return strings.HasPrefix(f.Name, "logs/") || strings.HasPrefix(f.Name, "objects/") || f.Name == "events.json"
		})
		files = append(files, bundle.Text("LEFT-OUT.txt", []byte(fmt.Sprintf("logs, objects and Events are left out, since the Secrets to be taken out of them can't be read: %v\n", err))))
	}
	return bundle.Write(ctx, w, "skerry-bundle-"+b.node, files, bundle.NewScrubber(values), most, time.Now())
}

// secretValues returns the values that must not be in any file: of the cached Secrets, and the
// device's keys and tokens.
func (b bundled) secretValues(ctx context.Context) (values [][]byte, err error) {
	items, err := b.held(ctx, secrets)
	if err != nil {
		return nil, err
	}
	for _, o := range items {
		decoded, err := object.Decode(o)
		if err != nil {
			return nil, err
		}
		if s, ok := decoded.(*corev1.Secret); ok {
			for _, v := range s.Data {
				values = append(values, v)
			}
		}
	}
	keys, _ := filepath.Glob(filepath.Join(IdentityDir(b.config), "*"))
	for _, path := range append(keys, storeConfig(b.config, nil).KeyFile, MetricsToken(b.config)) {
		if raw, err := os.ReadFile(path); err == nil && (bytes.Contains(raw, []byte("PRIVATE KEY")) || !strings.HasPrefix(path, IdentityDir(b.config))) {
			values = append(values, raw)
		}
	}
	if raw, err := os.ReadFile(Kubeconfig(b.config)); err == nil {
		for line := range strings.Lines(string(raw)) {
			if _, data, ok := strings.Cut(line, "client-key-data: "); ok {
				values = append(values, []byte(data))
			}
		}
	}
	return values, nil
}

func (b bundled) files() []bundle.File {
	command := func(name, of string, args ...string) bundle.File {
		return bundle.File{Name: name, Read: func(ctx context.Context, most int) ([]byte, error) { return program.Output(ctx, most, of, args...) }}
	}
	files := []bundle.File{
		bundle.Text("version.txt", []byte(fmt.Sprintf("edgecore %s (Kubernetes %s), packed at %s\n", version.Skerry(), version.Kubernetes(), time.Now().UTC().Format(time.RFC3339)))),
		{Name: "status.txt", Read: func(context.Context, int) ([]byte, error) { return b.status("text/plain") }},
		{Name: "status.json", Read: func(context.Context, int) ([]byte, error) { return b.status("application/json") }},
		{Name: "edgecore.yaml", YAML: true, Read: func(context.Context, int) ([]byte, error) { return yaml.Marshal(b.config) }},
		{Name: "events.json", Read: func(ctx context.Context, _ int) ([]byte, error) {
			events, err := b.events(ctx)
			out, marshalErr := json.MarshalIndent(events, "", " ")
			return out, errors.Join(err, marshalErr)
		}},
		{Name: "recorder.jsonl", Read: func(context.Context, int) ([]byte, error) { return flightrecorder.ReadRaw(FlightRecorder(b.config)) }},
		command("logs/edgecore.txt", "journalctl", "--no-pager", "--unit=edgecore", "--lines=20000"),
		command("logs/containerd.txt", "journalctl", "--no-pager", "--unit=containerd", "--lines=5000"),
		command("logs/kernel.txt", "journalctl", "--no-pager", "--dmesg", "--lines=5000"),
		command("kernel/addresses.txt", "ip", "-details", "address"),
		command("kernel/routes.txt", "ip", "route", "show", "table", "all"),
		command("kernel/routes6.txt", "ip", "-6", "route", "show", "table", "all"),
		command("kernel/rules.txt", "ip", "rule"),
		command("kernel/iptables.txt", "iptables-save"),
		command("kernel/nftables.txt", "nft", "list", "ruleset"),
		command("kernel/ipvs.txt", "ipvsadm", "--save", "--numeric"),
		command("kernel/sockets.txt", "ss", "-lntup"),
		command("machine/disks.txt", "df", "-h"),
		command("machine/memory.txt", "free", "-m"),
		command("machine/clock.txt", "timedatectl"),
	}
	logs, _ := filepath.Glob("/var/log/edgecore*.log") // of a device without journald
	for _, path := range logs {
		files = append(files, bundle.File{Name: "logs/" + filepath.Base(path), Read: func(_ context.Context, most int) ([]byte, error) { return readEnd(path, most) }})
	}
	for _, resource := range bundledObjects() {
		files = append(files, bundle.File{Name: "objects/" + resource.Resource + ".json", Read: func(ctx context.Context, _ int) ([]byte, error) {
			return b.objects(ctx, resource)
		}})
	}
	return files
}

// objects are those of a resource, without the fields that people put secrets into.
func (b bundled) objects(ctx context.Context, resource schema.GroupVersionResource) ([]byte, error) {
	items, err := b.held(ctx, resource)
	var out []any
	for _, o := range items[:min(len(items), maxObjects)] {
		decoded, err := object.Decode(o)
		if err != nil {
			continue
		}
		out = append(out, withoutSecrets(decoded))
	}
	raw, marshalErr := json.Marshal(out)
	return raw, errors.Join(err, marshalErr)
}

// withoutSecrets returns a copy of an object without the fields that may have secrets:
// environments, arguments, and annotations of others than Kubernetes and Skerry.
func withoutSecrets(decoded runtime.Object) runtime.Object {
	decoded = decoded.DeepCopyObject()
	m, err := meta.Accessor(decoded)
	if err != nil {
		return decoded // not reached: object.Decode has refused it
	}
	kept := m.GetAnnotations()
	maps.DeleteFunc(kept, func(key, _ string) bool {
		domain, _, _ := strings.Cut(key, "/")
		return domain != "skerry.io" && !strings.HasSuffix("."+domain, ".kubernetes.io") || key == corev1.LastAppliedConfigAnnotation
	})
	m.SetAnnotations(kept)
	m.SetManagedFields(nil)
	switch o := decoded.(type) {
	case *corev1.Pod:
		withoutArguments(o)
	case *unstructured.Unstructured:
		unstructured.RemoveNestedField(o.Object, "spec", "template") // an EdgeApp's pod
	}
	return decoded
}

// withoutArguments removes fields that may have secrets: environments, arguments, annotations.
func withoutArguments(p *corev1.Pod) {
	p.Annotations = nil
	for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			list[i].Args, list[i].Command = nil, nil
			list[i].LivenessProbe, list[i].ReadinessProbe, list[i].StartupProbe, list[i].Lifecycle = nil, nil, nil, nil
			for j := range list[i].Env {
				list[i].Env[j].Value = ""
			}
		}
	}
	p.Spec.EphemeralContainers = slices.Clip(p.Spec.EphemeralContainers[:0])
}

// readEnd is the end of a file.
func readEnd(path string, most int) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Size() > int64(most) {
		if _, err := f.Seek(-int64(most), io.SeekEnd); err != nil {
			return nil, err
		}
	}
	return io.ReadAll(io.LimitReader(f, int64(most)))
}

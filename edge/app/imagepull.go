package app

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/distribution/reference"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/edge/internal/agents/upgrade"
	"github.com/skerry-io/skerry/edge/internal/core/agent"
	"github.com/skerry-io/skerry/edge/internal/pods/cri"
)

// maxKept bounds the images that garbage collection leaves alone for ImagePulls; the oldest go
// first.
const maxKept = 128

// pulledImages are the container runtime's images, for NodeOperations of type ImagePull.
type pulledImages struct {
	app    *App
	edge   kubernetes.Interface
	memory agent.Memory
	served func() string // where this edgecore serves images to the kubelet; "" if it does not

	mu     sync.Mutex
	loaded bool
	kept   []string
}

func newImages(a *App, edge kubernetes.Interface, served func() string) *pulledImages {
	return &pulledImages{app: a, edge: edge, memory: agent.NewMemory(a.store, "imagepull"), served: served}
}

// load reads the stored names, once; p.mu is held.
func (p *pulledImages) load() error {
	if p.loaded {
		return nil
	}
	all, err := p.memory.Load()
	if err != nil {
		return err
	}
	if raw := all["kept"]; raw != nil {
		if err := json.Unmarshal(raw, &p.kept); err != nil {
			return fmt.Errorf("reading the images that are kept: %w", err)
		}
	}
	p.loaded = true
	return nil
}

// list is the images that garbage collection leaves alone; an error means that they are not known.
func (p *pulledImages) list() ([]string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.load(); err != nil {
		return nil, err
	}
	return slices.Clone(p.kept), nil
}

// Keep implements upgrade.Images.
func (p *pulledImages) Keep(ctx context.Context, image string) error {
	if p.served() == "" {
		return errors.New("the kubelet of this device has an image service of its own: its garbage collection may take the image")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.load(); err != nil {
		return err
	}
	if slices.Contains(p.kept, image) {
		return nil
	}
	next := append(slices.Clone(p.kept), image)
	next = next[max(0, len(next)-maxKept):]
	raw, err := json.Marshal(next)
	if err != nil {
		return err
	}
	if err := p.memory.Save(ctx, map[string][]byte{"kept": raw}); err != nil {
		return err
	}
	p.kept = next
	return nil
}

// Credentials implements upgrade.Images.
func (p *pulledImages) Credentials(ctx context.Context, from v1alpha1.SecretReference) (upgrade.Credentials, error) {
	pods, err := p.edge.CoreV1().Pods(from.Namespace).List(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", p.app.node).String()})
	if err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(pods.Items, func(pod corev1.Pod) bool {
		return slices.ContainsFunc(pod.Spec.ImagePullSecrets, func(r corev1.LocalObjectReference) bool { return r.Name == from.Name })
	}) {
		return nil, upgrade.ErrForeignSecret
	}
	secret, err := p.edge.CoreV1().Secrets(from.Namespace).Get(ctx, from.Name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return credentialsIn(secret)
}

func credentialsIn(secret *corev1.Secret) (upgrade.Credentials, error) {
	var file struct {
		Auths map[string]struct{ Username, Password, Auth string } `json:"auths"`
	}
	if err := json.Unmarshal(secret.Data[corev1.DockerConfigJsonKey], &file); err != nil {
		return nil, fmt.Errorf("its key %s can't be read", corev1.DockerConfigJsonKey)
	}
	all := upgrade.Credentials{}
	for host, a := range file.Auths {
		c := upgrade.Credential{Username: a.Username, Password: a.Password}
		if raw, err := base64.StdEncoding.DecodeString(a.Auth); err == nil && a.Auth != "" {
			c.Username, c.Password, _ = strings.Cut(string(raw), ":")
		}
		host = strings.TrimPrefix(strings.TrimPrefix(host, "https://"), "http://")
		host, _, _ = strings.Cut(host, "/")
		all[host] = c
	}
	return all, nil
}

func (p *pulledImages) client() (runtimev1.ImageServiceClient, func() error, error) {
	if p.app.edged == nil {
		return nil, nil, errors.New("this device has no container runtime: modules.edged.enable is false")
	}
	conn, err := cri.Dial(p.app.edged.Images())
	if err != nil {
		return nil, nil, err
	}
	return runtimev1.NewImageServiceClient(conn), conn.Close, nil
}

// Present implements upgrade.Images.
func (p *pulledImages) Present(ctx context.Context, image string) (bool, error) {
	c, end, err := p.client()
	if err != nil {
		return false, err
	}
	defer end()
	s, err := c.ImageStatus(ctx, &runtimev1.ImageStatusRequest{Image: &runtimev1.ImageSpec{Image: image}})
	return err == nil && s.Image != nil, err
}

// Pull implements upgrade.Images.
func (p *pulledImages) Pull(ctx context.Context, image string, as upgrade.Credentials) error {
	c, end, err := p.client()
	if err != nil {
		return err
	}
	defer end()
	request := &runtimev1.PullImageRequest{Image: &runtimev1.ImageSpec{Image: image}}
	if named, err := reference.ParseDockerRef(image); err == nil {
		if own, ok := as[reference.Domain(named)]; ok {
			request.Auth = &runtimev1.AuthConfig{Username: own.Username, Password: own.Password}
		}
	}
	_, err = c.PullImage(ctx, request)
	return err
}

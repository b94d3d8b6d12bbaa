package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/distribution/reference"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"
	pullsecrets "k8s.io/kubernetes/pkg/credentialprovider/secrets"

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
	node    string
	kubelet *kubelet
	edge    kubernetes.Interface
	memory  agent.Memory
	served  func() string // where this edgecore serves images to the kubelet; "" if it does not

	mu     sync.Mutex
	loaded bool
	kept   []string
}

func newImages(b *base, k *kubelet, edge kubernetes.Interface) *pulledImages {
	return &pulledImages{node: b.node, kubelet: k, edge: edge, memory: b.memory("imagepull"), served: func() string { return imageService(b.config) }}
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
	pods, err := p.edge.CoreV1().Pods(from.Namespace).List(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", p.node).String()})
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

// credentialsIn reads a Secret as the kubelet does: its entries may have a path or a wildcard, and
// that of Docker Hub has another name than its images.
func credentialsIn(secret *corev1.Secret) (upgrade.Credentials, error) {
	keys, err := pullsecrets.MakeDockerKeyring([]corev1.Secret{*secret}, nil)
	if err != nil {
		return nil, fmt.Errorf("its key %s can't be read", corev1.DockerConfigJsonKey) // the error has a part of it
	}
	if keys == nil {
		return nil, fmt.Errorf("it has no credentials of type %s", corev1.SecretTypeDockerConfigJson)
	}
	return func(image string) (all []upgrade.Credential) {
		named, err := reference.ParseDockerRef(image)
		if err != nil {
			return nil
		}
		found, _ := keys.Lookup(named.Name())
		for _, c := range found {
			all = append(all, upgrade.Credential{Username: c.Username, Password: c.Password})
		}
		return all
	}, nil
}

func (p *pulledImages) client() (runtimev1.ImageServiceClient, func() error, error) {
	if p.kubelet.module == nil {
		return nil, nil, errors.New("this device has no container runtime: modules.edged.enable is false")
	}
	conn, err := cri.Dial(p.kubelet.images())
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
	var logins []upgrade.Credential
	if as != nil {
		logins = as(image)
	}
	if len(logins) == 0 {
		_, err = c.PullImage(ctx, request)
		return err
	}
	for _, own := range logins {
		request.Auth = &runtimev1.AuthConfig{Username: own.Username, Password: own.Password}
		if _, err = c.PullImage(ctx, request); err == nil || ctx.Err() != nil {
			break
		}
	}
	return err
}

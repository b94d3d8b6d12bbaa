package aggregated

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
)

const apiServices = "/apis/apiregistration.k8s.io/v1/apiservices/"

// Bundles keeps spec.caBundle of cloudcore's own APIServices: by it the aggregator knows cloudcore.
type Bundles struct {
	// Set by New, never changed.
	client    rest.Interface
	namespace string
	services  map[string]string
	ca        []byte
}

// NewBundles returns Bundles. services are names of APIServices, each with the Service
// in the namespace that it must lead to; ca is PEM.
func NewBundles(client rest.Interface, namespace string, services map[string]string, ca []byte) *Bundles {
	return &Bundles{client, namespace, services, ca}
}

// retry is for failures: the manifests may be applied a moment after cloudcore has started.
const retry = 10 * time.Second

// Run checks the APIServices now and then until ctx ends.
func (b *Bundles) Run(ctx context.Context, every time.Duration) error {
	last := ""
	for {
		wait, now := every, ""
		if err := b.Sync(ctx); err != nil && ctx.Err() == nil {
			wait, now = retry, err.Error()
			if now != last { // not each time: where the rights are missing this is how it stays
				klog.FromContext(ctx).Error(err, "Failed to update the APIService CA bundles, retrying")
			}
		}
		last = now
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}

// Sync checks each APIService once. A missing one is no error: cloudcore is not called for it then.
func (b *Bundles) Sync(ctx context.Context) error {
	var errs []error
	for name, service := range b.services {
		if err := b.one(ctx, name, service); err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("APIService %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

// service is the part of an APIService that is read and written.
type service struct {
	Metadata struct {
		ResourceVersion string `json:"resourceVersion,omitempty"`
	} `json:"metadata"`
	Spec struct {
		CABundle []byte `json:"caBundle"`
		Service  *struct {
			Namespace string `json:"namespace"`
			Name      string `json:"name"`
		} `json:"service,omitempty"`
	} `json:"spec"`
}

func (b *Bundles) one(ctx context.Context, name, leadsTo string) error {
	raw, err := b.client.Get().AbsPath(apiServices+name).SetHeader("Accept", "application/json").DoRaw(ctx)
	if err != nil {
		return err
	}
	var s service
	if err := json.Unmarshal(raw, &s); err != nil {
		return fmt.Errorf("reading it: %w", err)
	}
	to := s.Spec.Service
	if to == nil || to.Namespace != b.namespace || to.Name != leadsTo || bytes.Equal(s.Spec.CABundle, b.ca) {
		return nil
	}
	s.Spec.CABundle, s.Spec.Service = b.ca, nil
	patch, err := json.Marshal(s) // with the version that was read: one that leads elsewhere since then is left alone
	if err != nil {
		return err
	}
	if _, err := b.client.Patch(types.MergePatchType).AbsPath(apiServices+name).SetHeader("Accept", "application/json").Body(patch).DoRaw(ctx); err != nil {
		return fmt.Errorf("setting caBundle: %w", err)
	}
	klog.FromContext(ctx).Info("Updated the APIService CA bundle", "apiService", name)
	return nil
}

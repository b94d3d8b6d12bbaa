package app

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/skerry-io/skerry/edge/internal/core/metamanager"
	"github.com/skerry-io/skerry/edge/internal/core/object"
	"github.com/skerry-io/skerry/edge/internal/setup/bundle"
	edgeconfig "github.com/skerry-io/skerry/edge/internal/setup/config"
)

// WriteBundleOfFiles packs a support bundle while no edgecore runs; text writes a status for
// people.
func WriteBundleOfFiles(ctx context.Context, cfg *edgeconfig.Config, w io.Writer, text func(io.Writer, Status) error) error {
	status, statusErr := StatusOfFiles(ctx, cfg)
	b := bundled{
		config: cfg, node: status.Node,
		status: func(accept string) ([]byte, error) {
			if accept != "text/plain" {
				body, err := json.Marshal(status)
				return body, errors.Join(err, statusErr)
			}
			var shown bytes.Buffer
			err := text(&shown, status)
			return shown.Bytes(), errors.Join(err, statusErr)
		},
		events: func(ctx context.Context) ([]corev1.Event, error) { return EventsOfFiles(ctx, cfg) },
	}
	if b.node == "" {
		b.node = "device"
	}
	key, err := readDiskKey(ctx, cfg)
	if err == nil {
		file, openErr := openStopped(ctx, cfg, key)
		if err = openErr; err == nil {
			kept := map[schema.GroupVersionResource][]object.Object{}
			for _, resource := range append(bundledObjects(), secrets) {
				if kept[resource], err = metamanager.HeldIn(file, resource); err != nil {
					break
				}
			}
			err = errors.Join(err, file.Close())
			b.held = func(_ context.Context, resource schema.GroupVersionResource) ([]object.Object, error) {
				return kept[resource], err
			}
		}
	}
	if b.held == nil {
		b.held = func(context.Context, schema.GroupVersionResource) ([]object.Object, error) { return nil, err }
	}
	return b.write(ctx, w, bundle.MaxFile)
}

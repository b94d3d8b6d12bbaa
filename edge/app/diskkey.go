package app

import (
	"context"
	"path/filepath"

	"github.com/skerry-io/skerry/edge/internal/core/edgeapi"
	"github.com/skerry-io/skerry/edge/internal/kernel/host/diskkey"
	edgeconfig "github.com/skerry-io/skerry/edge/internal/setup/config"
	"github.com/skerry-io/skerry/edge/internal/setup/join"
)

// readDiskKey gets the key that is not on the disk; nil if the configuration names no source.
func readDiskKey(ctx context.Context, cfg *edgeconfig.Config) (*diskkey.Key, error) {
	e := cfg.Modules.MetaManager.Encryption
	return diskkey.Read(ctx, diskkey.Config{Command: e.KeyCommand, Credential: e.KeyCredential})
}

// sealer is the key as the identity's; nil without one.
func sealer(key *diskkey.Key) join.Sealer {
	if key == nil {
		return nil
	}
	return key
}

// Sealer seals the identity of a device whose keys must not lie on the disk in the clear; nil
// where they may.
func Sealer(ctx context.Context, cfg *edgeconfig.Config) (join.Sealer, error) {
	key, err := readDiskKey(ctx, cfg)
	return sealer(key), err
}

// keysDir is the directory of the device's own keys and tokens that other programs on the device
// read: next to the store, or in memory only.
func keysDir(cfg *edgeconfig.Config) string {
	if e := cfg.Modules.MetaManager.Encryption; e.Sealed() {
		return e.KeysDir
	}
	return cfg.DataDir
}

// kubeletKeys returns the directory for the key of the kubelet's server; "": the kubelet chooses.
// In memory it is a new one after each boot.
func kubeletKeys(cfg *edgeconfig.Config) string {
	if e := cfg.Modules.MetaManager.Encryption; e.Sealed() {
		return filepath.Join(e.KeysDir, "kubelet")
	}
	return ""
}

// Kubeconfig is the file by which root of the device reaches the device's API.
func Kubeconfig(cfg *edgeconfig.Config) string {
	return filepath.Join(keysDir(cfg), edgeapi.KubeconfigFile)
}

// MetricsToken returns the file with the token for /metrics, readable only by root.
func MetricsToken(cfg *edgeconfig.Config) string { return filepath.Join(keysDir(cfg), "metrics.token") }

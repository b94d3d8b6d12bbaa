package deviceplugin

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
)

// checkpointFile is where the kubelet keeps devices over restarts (kubeletDeviceManagerCheckpoint).
const checkpointFile = "kubelet_internal_checkpoint"

// checkpoint is as much of devicemanager/checkpoint.Data as is the same in every Kubernetes.
type checkpoint struct {
	Data struct {
		PodDeviceEntries []struct {
			PodUID       types.UID
			ResourceName string
			DeviceIDs    map[int64][]string // by NUMA node
		}
		RegisteredDevices map[string][]string
	}
}

// readResources reads the kubelet's checkpoint in a directory. Without a checkpoint no plugin ever
// registered. One that can't be read is lost to the kubelet too, which would start containers
// without their devices.
func readResources(dir string) (Resources, error) {
	r := Resources{Known: sets.New[string](), Allocated: map[types.UID]map[string]sets.Set[string]{}}
	raw, err := os.ReadFile(filepath.Join(dir, checkpointFile))
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	var c checkpoint
	if err == nil {
		err = json.Unmarshal(raw, &c)
	}
	if err != nil {
		r.All = true
		return r, fmt.Errorf("reading the kubelet's checkpoint of devices: %w", err)
	}
	for name := range c.Data.RegisteredDevices {
		r.Known.Insert(name)
	}
	for _, e := range c.Data.PodDeviceEntries {
		r.Known.Insert(e.ResourceName)
		if r.Allocated[e.PodUID] == nil {
			r.Allocated[e.PodUID] = map[string]sets.Set[string]{}
		}
		if r.Allocated[e.PodUID][e.ResourceName] == nil {
			r.Allocated[e.PodUID][e.ResourceName] = sets.New[string]()
		}
		for _, ids := range e.DeviceIDs {
			r.Allocated[e.PodUID][e.ResourceName].Insert(ids...)
		}
	}
	return r, nil
}

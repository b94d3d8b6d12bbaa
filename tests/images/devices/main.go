// Command devices has the drivers of hardware that pods request from the kubelet: a driver of
// DRA, which publishes its device through the API, a CSI driver whose volumes are attached, and a
// device plugin. As "wait" it is a pod that uses one.
package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	dra "k8s.io/kubelet/pkg/apis/dra/v1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

const (
	draName = "dra.devices.example"
	csiName = "csi.devices.example"
	plugins = "/var/lib/kubelet/plugins"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	var err error
	switch mode := os.Args[1]; mode {
	case "dra":
		err = runDRA(ctx)
	case "csi":
		err = runCSI(ctx)
	case "plugin":
		err = runPlugin(ctx)
	case "wait":
		<-ctx.Done()
	default:
		err = fmt.Errorf("unknown mode %q", mode)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// driver prepares every claim, without any devices.
type driver struct {
	dra.UnimplementedDRAPluginServer
}

func (driver) NodePrepareResources(_ context.Context, r *dra.NodePrepareResourcesRequest) (*dra.NodePrepareResourcesResponse, error) {
	out := &dra.NodePrepareResourcesResponse{Claims: map[string]*dra.NodePrepareResourceResponse{}}
	for _, c := range r.Claims {
		out.Claims[c.Uid] = &dra.NodePrepareResourceResponse{Devices: []*dra.Device{{RequestNames: []string{"one"}, PoolName: os.Getenv("NODE_NAME"), DeviceName: "dev-0"}}}
	}
	return out, nil
}

func (driver) NodeUnprepareResources(_ context.Context, r *dra.NodeUnprepareResourcesRequest) (*dra.NodeUnprepareResourcesResponse, error) {
	out := &dra.NodeUnprepareResourcesResponse{Claims: map[string]*dra.NodeUnprepareResourceResponse{}}
	for _, c := range r.Claims {
		out.Claims[c.Uid] = &dra.NodeUnprepareResourceResponse{}
	}
	return out, nil
}

func runDRA(ctx context.Context) error {
	endpoint := filepath.Join(plugins, draName, "dra.sock")
	failed := make(chan error, 3)
	go func() {
		failed <- serve(endpoint, func(s *grpc.Server) { dra.RegisterDRAPluginServer(s, driver{}) })
	}()
	go func() {
		failed <- serve("/var/lib/kubelet/plugins_registry/"+draName+"-reg.sock", func(s *grpc.Server) {
			registerapi.RegisterRegistrationServer(s, registration{info: &registerapi.PluginInfo{
				Type: registerapi.DRAPlugin, Name: draName, Endpoint: endpoint, SupportedVersions: []string{dra.DRAPluginService},
			}})
		})
	}()
	go func() { failed <- publish(ctx) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
		return nil
	}
}

// publish keeps the driver's ResourceSlice of this node, as drivers do: it follows its own by a
// selector of driver and node, and creates it if it is missing.
func publish(ctx context.Context) error {
	config, err := rest.InClusterConfig()
	if err != nil {
		return fmt.Errorf("finding the API: %w", err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("making the client: %w", err)
	}
	node := os.Getenv("NODE_NAME")
	slice := &resourcev1.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: node + "-" + draName},
		Spec: resourcev1.ResourceSliceSpec{
			Driver: draName, NodeName: &node, Pool: resourcev1.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: 1},
			Devices: []resourcev1.Device{{Name: "dev-0"}},
		},
	}
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = "spec.driver=" + draName + ",spec.nodeName=" + node
	}))
	own := factory.Resource().V1().ResourceSlices()
	gone := make(chan struct{}, 1)
	if _, err := own.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{DeleteFunc: func(any) { gone <- struct{}{} }}); err != nil {
		return err
	}
	factory.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), own.Informer().HasSynced) {
		return nil
	}
	for {
		if _, err := own.Lister().Get(slice.Name); err != nil {
			if _, err := client.ResourceV1().ResourceSlices().Create(ctx, slice, metav1.CreateOptions{}); err != nil {
				fmt.Fprintln(os.Stderr, "publishing:", err)
				time.AfterFunc(time.Second, func() {
					select {
					case gone <- struct{}{}:
					default:
					}
				})
			}
		}
		select {
		case <-gone:
		case <-ctx.Done():
			return nil
		}
	}
}

// volumes are folders.
type volumes struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedNodeServer
}

func (volumes) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: csiName, VendorVersion: "1"}, nil
}

func (volumes) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	return &csi.GetPluginCapabilitiesResponse{}, nil
}

func (volumes) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{}, nil
}

func (volumes) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: os.Getenv("NODE_NAME")}, nil
}

func (volumes) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	return &csi.NodeGetCapabilitiesResponse{}, nil
}

func (volumes) NodePublishVolume(_ context.Context, r *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	return &csi.NodePublishVolumeResponse{}, os.MkdirAll(r.TargetPath, 0o750)
}

func (volumes) NodeUnpublishVolume(_ context.Context, r *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	return &csi.NodeUnpublishVolumeResponse{}, os.RemoveAll(r.TargetPath)
}

// registration tells the kubelet of the CSI driver.
type registration struct {
	registerapi.UnimplementedRegistrationServer
	info *registerapi.PluginInfo
}

func (r registration) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return r.info, nil
}

func (registration) NotifyRegistrationStatus(context.Context, *registerapi.RegistrationStatus) (*registerapi.RegistrationStatusResponse, error) {
	return &registerapi.RegistrationStatusResponse{}, nil
}

func runCSI(ctx context.Context) error {
	endpoint := filepath.Join(plugins, csiName, "csi.sock")
	failed := make(chan error, 2)
	go func() {
		failed <- serve(endpoint, func(s *grpc.Server) {
			csi.RegisterIdentityServer(s, volumes{})
			csi.RegisterNodeServer(s, volumes{})
		})
	}()
	go func() {
		failed <- serve("/var/lib/kubelet/plugins_registry/"+csiName+"-reg.sock", func(s *grpc.Server) {
			registerapi.RegisterRegistrationServer(s, registration{info: &registerapi.PluginInfo{
				Type: registerapi.CSIPlugin, Name: csiName, Endpoint: endpoint, SupportedVersions: []string{"1.0.0"},
			}})
		})
	}()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
		return nil
	}
}

func serve(path string, register func(*grpc.Server)) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return err
	}
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return err
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return fmt.Errorf("listening: %w", err)
	}
	s := grpc.NewServer()
	register(s)
	return s.Serve(l)
}

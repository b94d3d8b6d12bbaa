package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	deviceplugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const (
	thing        = "devices.example/thing"
	pluginSocket = "devices.example.sock"
	// absent is a file: while it is there the plugin does not register.
	absent = "/var/lib/kubelet/devices.example.absent"
	// hangs is a file: while it is there Allocate does not return.
	hangs = "/var/lib/kubelet/devices.example.hangs"
	pause = 300 * time.Millisecond
)

// things are two devices without requirements.
type things struct {
	deviceplugin.UnimplementedDevicePluginServer
}

func (things) GetDevicePluginOptions(context.Context, *deviceplugin.Empty) (*deviceplugin.DevicePluginOptions, error) {
	return &deviceplugin.DevicePluginOptions{}, nil
}

func (things) ListAndWatch(_ *deviceplugin.Empty, s deviceplugin.DevicePlugin_ListAndWatchServer) error {
	devices := []*deviceplugin.Device{{ID: "one", Health: deviceplugin.Healthy}, {ID: "two", Health: deviceplugin.Healthy}}
	if err := s.Send(&deviceplugin.ListAndWatchResponse{Devices: devices}); err != nil {
		return err
	}
	<-s.Context().Done()
	return nil
}

func (things) Allocate(ctx context.Context, r *deviceplugin.AllocateRequest) (*deviceplugin.AllocateResponse, error) {
	for ctx.Err() == nil {
		if _, err := os.Stat(hangs); err != nil {
			break
		}
		wait(ctx)
	}
	out := &deviceplugin.AllocateResponse{}
	for range r.ContainerRequests {
		out.ContainerResponses = append(out.ContainerResponses, &deviceplugin.ContainerAllocateResponse{Envs: map[string]string{"THING": "yes"}})
	}
	return out, nil
}

// runPlugin registers with each kubelet that starts: it then removes the sockets of its plugins.
func runPlugin(ctx context.Context) error {
	for ctx.Err() == nil {
		if err := registerPlugin(ctx); err != nil {
			fmt.Fprintln(os.Stderr, "registering:", err)
		}
		wait(ctx)
	}
	return nil
}

func wait(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(pause):
	}
}

func registerPlugin(ctx context.Context) error {
	if _, err := os.Stat(absent); err == nil {
		return nil
	}
	path := filepath.Join(deviceplugin.DevicePluginPath, pluginSocket)
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return err
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	s := grpc.NewServer()
	defer s.Stop()
	deviceplugin.RegisterDevicePluginServer(s, things{})
	go func() { _ = s.Serve(l) }()
	conn, err := grpc.NewClient("unix://"+deviceplugin.KubeletSocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	asked, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	request := &deviceplugin.RegisterRequest{Version: deviceplugin.Version, Endpoint: pluginSocket, ResourceName: thing}
	if _, err := deviceplugin.NewRegistrationClient(conn).Register(asked, request); err != nil {
		return err
	}
	for ctx.Err() == nil {
		if _, err := os.Stat(path); err != nil {
			return nil
		}
		wait(ctx)
	}
	return nil
}

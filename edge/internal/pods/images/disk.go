package images

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/skerry-io/skerry/edge/internal/pods/cri"
	"github.com/skerry-io/skerry/edge/internal/pods/images/containerd"
)

// write writes all files of images to the disk, which may take as long as the disk does.
func (s *Server) write(ctx context.Context, runtime runtimev1.ImageServiceClient) error {
	paths, err := fileSystems(ctx, runtime)
	if err != nil {
		return err
	}
	for _, path := range paths {
		if err := s.config.Sync(path); err != nil {
			return err
		}
	}
	return nil
}

// fileSystems are the mount points of images, the default snapshotter's first.
func fileSystems(ctx context.Context, runtime runtimev1.ImageServiceClient) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	info, err := runtime.ImageFsInfo(ctx, &runtimev1.ImageFsInfoRequest{})
	if err != nil {
		return nil, fmt.Errorf("asking for the file systems of images: %w", err)
	}
	var all []string
	for _, f := range info.ImageFilesystems {
		all = append(all, f.GetFsId().GetMountpoint())
	}
	if len(all) == 0 {
		return nil, errors.New("the container runtime reports no file system of images")
	}
	return all, nil
}

// images gives do a client of the runtime's image service.
func (s *Server) images(do func(runtimev1.ImageServiceClient) error) error {
	conn, err := cri.Dial(s.config.Images)
	if err != nil {
		return err
	}
	return errors.Join(do(runtimev1.NewImageServiceClient(conn)), conn.Close())
}

// containerd gives do a client of containerd's own API.
func (s *Server) containerd(ctx context.Context, runtime runtimev1.ImageServiceClient, do func(*containerd.Client) error) error {
	paths, err := fileSystems(ctx, runtime)
	if err != nil {
		return err
	}
	conn, err := cri.Dial(s.config.Runtime)
	if err != nil {
		return err
	}
	client, err := containerd.New(ctx, conn, paths[0])
	if err == nil {
		err = do(client)
	}
	return errors.Join(err, conn.Close())
}

// Sync writes all files of a path's file system to the disk (syncfs(2)); those of all file systems
// if the path is not there, as with a snapshotter in a mount namespace of its own.
func Sync(path string) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_DIRECTORY, 0)
	if err != nil {
		unix.Sync()
		return nil
	}
	err = unix.Syncfs(fd)
	if err := errors.Join(err, unix.Close(fd)); err != nil {
		return fmt.Errorf("writing %s to the disk: %w", path, err)
	}
	return nil
}

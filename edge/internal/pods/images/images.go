// Package images serves the kubelet the images of the container runtime (CRI's ImageService), and
// keeps the kubelet's garbage collection from the images that this device can't do without: the
// image of pods' sandboxes, and those that it may have to start containers of again. A device that
// is cut off can't pull them.
//
// It owns the socket that the kubelet finds images at, and which of them are shown as pinned: CRI's
// term for images that are never collected. containerd itself pins only the sandbox image, from 1.7
// on. It also restores the sandbox image if containerd does not have it (Restore). No container
// starts before its image's files are on the disk, whoever brought the image (complete.go); the
// image of a pull that a power cut has interrupted is removed at the next start (Settle). A pull
// that fails without a link gives a pod the image with which it has run before (heldBy). All other
// image requests of the kubelet go to the runtime, whose answers are returned unchanged; it does
// not refuse requests or remove other images. While it is not known which images are wanted, all
// are pinned.
// A Server may be used by many goroutines.
package images

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/edge/internal/core/agent"
	"github.com/skerry-io/skerry/edge/internal/pods/cri"
	"github.com/skerry-io/skerry/edge/internal/pods/images/containerd"
)

// Name is the module's address on the bus. It receives no messages.
const Name message.Name = "images"

// Config configures a Server.
type Config struct {
	// Listen opens the socket at which the kubelet asks.
	Listen func() (net.Listener, error)
	// Runtime and Images are the endpoints of the container runtime ("unix:///run/..."), of pods
	// and of images; mostly they are the same.
	Runtime, Images string
	// API configures a client of the edge API, which lists the pods of the device, and its
	// applications where Apps is set.
	API      *rest.Config
	NodeName string
	Apps     bool
	// Kept are further images to pin; may be nil.
	Kept func() ([]string, error)
	// Archive is a file with the sandbox image (an OCI layout in a tar); "" without one.
	Archive string
	// Linked reports whether there is a link to the cloud; nil: pulls that fail have failed.
	Linked func() bool
	// Memory stores the pulls that are not complete, by image.
	Memory agent.Memory
	// Complete stores the complete images, by ID; nil if the kubelet does not ask this Server.
	Complete agent.Memory
	// Boot is the unique ID of this boot (proc(5)), BootTime when it began, by the present clock.
	Boot     string
	BootTime func() time.Time
	// Sync writes the files of a path's file system to the disk.
	Sync func(path string) error
}

// Server is the image service of one container runtime.
type Server struct {
	runtimev1.UnimplementedImageServiceServer // fallback for other methods: the kubelet then uses another

	config Config
	pods   func(ctx context.Context) ([]corev1.Pod, error)
	wanted func(ctx context.Context) ([]string, error)

	mu      sync.Mutex
	used    map[string][]string // at the kubelet's start, see Used; bounded by the pods of the device
	sandbox string              // its image; "": not known
	asked   int                 // the runtime's process that was asked for it
	failed  time.Time           // the last question that failed; zero if the last one did not
	unknown bool                // the last question for the wanted images failed
	failure string              // of the last attempt to restore the sandbox image; "" if it succeeded
	// complete are the images whose files are on the disk, by ID; bounded by those of the runtime.
	// surveyed: they are those of this boot.
	complete map[string]complete
	surveyed bool
	failures map[string]string // of attempts to complete an image, by ID; bounded likewise

	flight singleflight.Group // of images that are completed, by ID, and of the restore

	storing sync.Mutex // changes complete and what is stored of it

	pulls sync.Mutex
	// settled: no pull of an earlier process is stored. pulling are the pulls under way, by image.
	// Both are guarded by pulls.
	settled bool
	pulling map[string]int
}

// complete is what is stored of a complete image, by its ID. It holds for its layers alone: an
// image that comes again is unpacked again.
type complete struct {
	Layers containerd.Layers `json:"layers,omitzero"`
	// Doubtful: the layers are of an earlier boot, it is not known that they were written, and they
	// could not be removed.
	Doubtful bool `json:"doubtful,omitempty"`
}

// New returns a Server.
func New(config Config) (*Server, error) {
	pods, wanted, err := askedOf(config.API, config.NodeName, config.Apps)
	if err != nil {
		return nil, err
	}
	return &Server{config: config, pods: pods, wanted: wanted, pulling: map[string]int{}, complete: map[string]complete{}, failures: map[string]string{}}, nil
}

// Name implements beehive.Module.
func (*Server) Name() message.Name { return Name }

// Run implements beehive.Module.
func (s *Server) Run(ctx context.Context, port *beehive.Port) error { return s.Serve(ctx, port.Ready) }

// Serve serves the kubelet until ctx ends; ready is called once it can ask.
func (s *Server) Serve(ctx context.Context, ready func()) error {
	l, err := s.config.Listen()
	if err != nil {
		return err
	}
	conn, err := cri.Dial(s.config.Images)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	defer conn.Close()
	server := grpc.NewServer(grpc.MaxRecvMsgSize(cri.MaxMessage), grpc.MaxSendMsgSize(cri.MaxMessage))
	runtimev1.RegisterImageServiceServer(server, service{Server: s, runtime: runtimev1.NewImageServiceClient(conn)})
	stop := context.AfterFunc(ctx, server.Stop) // a pull may take hours: it ends with its caller, the kubelet
	defer stop()
	ready()
	if err := server.Serve(l); err != nil && ctx.Err() == nil {
		return fmt.Errorf("serving the kubelet's requests for images: %w", err)
	}
	return nil
}

// service is a Server while it serves.
type service struct {
	*Server
	runtime runtimev1.ImageServiceClient
}

// pin marks the images that must not be collected.
func (s *Server) pin(ctx context.Context, images []*runtimev1.Image) {
	wanted, err := s.wanted(ctx)
	if err == nil && s.config.Kept != nil {
		var kept []string
		kept, err = s.config.Kept()
		wanted = append(wanted, kept...)
	}
	sandbox := s.sandboxImage(ctx)
	s.note(ctx, err)
	Pin(images, append(wanted, sandbox), err == nil)
}

// note logs when it is no longer known which images are wanted, and when it is again.
func (s *Server) note(ctx context.Context, err error) {
	s.mu.Lock()
	before := s.unknown
	s.unknown = err != nil
	s.mu.Unlock()
	switch {
	case err != nil && !before:
		klog.FromContext(ctx).Info("Failed to list the pods of this device, keeping all images from garbage collection", "err", err)
	case err == nil && before:
		klog.FromContext(ctx).Info("Listed the pods of this device, unused images may be collected again")
	}
}

const (
	// askTimeout bounds a question to the runtime that nobody's deadline bounds.
	askTimeout = 10 * time.Second
	// askAgain is how long a question that failed is not repeated, for which containerd's program
	// runs.
	askAgain = 10 * time.Second
)

// sandboxImage is the image of pods' sandboxes; "" if the runtime doesn't report it. A runtime is
// asked once: another version has another image.
func (s *Server) sandboxImage(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	server, err := cri.Server(ctx, s.config.Runtime)
	if err != nil {
		klog.FromContext(ctx).V(2).Info("Failed to find the process of the container runtime", "err", err)
	}
	s.mu.Lock()
	known, asked, failed := s.sandbox, s.asked, s.failed
	s.mu.Unlock()
	if server == asked && server != 0 || server == 0 && known != "" || time.Since(failed) < askAgain {
		return known
	}
	name, err := SandboxImage(ctx, s.config.Runtime)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil && !errors.Is(err, ErrUntold) {
		if s.failed.IsZero() {
			klog.FromContext(ctx).Error(err, "Failed to ask for the image of sandboxes, retrying: a missing one is not restored")
		}
		s.failed = time.Now()
		return known
	}
	s.sandbox, s.asked, s.failed = name, server, time.Time{}
	return name
}

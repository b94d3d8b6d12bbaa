package images

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/edge/internal/pods/images/containerd"
)

// An image is complete once its unpacked files are on the disk. That of a pull is (PullImage). Of
// an image that came otherwise, as with `ctr images import`, containerd writes them whenever the
// kernel does, or unpacks them only for the first container: edgecore completes it when the kubelet
// asks for it, which is before that container. One that was not complete at a boot is unpacked
// again, if nothing uses it: the boot before may have ended with a power cut.

const (
	// surveyed is the key of the boot of the last survey; all others are IDs of images.
	surveyed = "boot"
	// completeTimeout bounds the unpacking of one image: longer than a slow disk takes.
	completeTimeout = time.Hour
)

// survey takes the images that are complete from the memory. At the first start of this device
// those are that are unpacked, once they are written. The first survey of a boot removes the
// unpacked layers of the others, and what an interrupted pull or import has left. Nothing is stored
// after a failure: no image is complete before the survey.
func (s *Server) survey(ctx context.Context, runtime runtimev1.ImageServiceClient, stored map[string][]byte) error {
	list, err := runtime.ListImages(ctx, &runtimev1.ListImagesRequest{})
	if err != nil {
		return fmt.Errorf("listing the images: %w", err)
	}
	boot, surveyedBefore := stored[surveyed]
	known := map[string]complete{}
	return s.containerd(ctx, runtime, func(c *containerd.Client) error {
		var others []containerd.Image
		for _, i := range list.Images {
			before, ok, err := s.intact(ctx, c, stored[i.Id])
			if err != nil {
				return err
			}
			if ok && (!before.Doubtful || string(boot) == s.config.Boot) {
				known[i.Id] = before
			} else {
				others = append(others, imageOf(i))
			}
		}
		var err error
		switch {
		case !surveyedBefore:
			err = s.takeAll(ctx, runtime, c, others, known)
		case string(boot) != s.config.Boot:
			err = s.unpackAgain(ctx, c, others, known)
		}
		if err != nil {
			return err
		}
		return s.saveSurvey(ctx, stored, known)
	})
}

// intact decodes what is stored of an image, and reports whether its layers are still those.
func (s *Server) intact(ctx context.Context, c *containerd.Client, raw []byte) (before complete, ok bool, err error) {
	if json.Unmarshal(raw, &before) != nil { // or nothing is stored
		return before, false, nil
	}
	ok, err = c.Same(ctx, before.Layers)
	return before, ok, err
}

// takeAll writes all images, of which those are complete that are unpacked.
func (s *Server) takeAll(ctx context.Context, runtime runtimev1.ImageServiceClient, c *containerd.Client, all []containerd.Image, known map[string]complete) error {
	if err := s.write(ctx, runtime); err != nil {
		return err
	}
	for _, i := range all {
		l, unpacked, err := c.Find(ctx, i)
		switch {
		case errors.Is(err, containerd.ErrForeign), err == nil && unpacked:
			known[i.ID] = complete{Layers: l}
		case err != nil && !errors.Is(err, containerd.ErrUnreadable):
			return err
		}
	}
	return nil
}

// unpackAgain has images unpacked again when they are asked for. Those are doubtful whose layers
// could not be removed: they are in use, or their blobs are gone.
func (s *Server) unpackAgain(ctx context.Context, c *containerd.Client, others []containerd.Image, known map[string]complete) error {
	if err := c.DeleteExpiring(ctx, s.booted()); err != nil || len(others) == 0 {
		return err
	}
	if err := c.Discard(ctx, others); err != nil {
		if errors.Is(err, containerd.ErrForeign) {
			return nil
		}
		return err
	}
	written := map[containerd.Layers]bool{}
	for _, k := range known {
		written[k.Layers] = !k.Doubtful
	}
	for _, i := range others {
		l, unpacked, err := c.Find(ctx, i)
		switch {
		case err != nil && !errors.Is(err, containerd.ErrUnreadable):
			return err
		case err != nil || !unpacked:
		case written[l]: // they are another image's too
			known[i.ID] = complete{Layers: l}
		default:
			klog.FromContext(ctx).Info("Kept an image that may have been incomplete at a power cut: it is in use, or its blobs are gone. If its containers fail, delete their pods, and remove and load it again", "image", i.ID, "names", i.Names)
			known[i.ID] = complete{Layers: l, Doubtful: true}
		}
	}
	return nil
}

// booted is when this boot began; with a clock before 2026, which is not right, now.
func (s *Server) booted() time.Time {
	if now := time.Now(); now.Year() < 2026 {
		return now
	}
	return s.config.BootTime()
}

// saveSurvey stores the complete images, and the boot.
func (s *Server) saveSurvey(ctx context.Context, stored map[string][]byte, known map[string]complete) error {
	changes := map[string][]byte{}
	if string(stored[surveyed]) != s.config.Boot {
		changes[surveyed] = []byte(s.config.Boot)
	}
	for id := range stored {
		if _, ok := known[id]; !ok && id != surveyed {
			changes[id] = nil
		}
	}
	for id, k := range known {
		raw, err := json.Marshal(k)
		if err != nil {
			return err
		}
		if string(stored[id]) != string(raw) {
			changes[id] = raw
		}
	}
	s.storing.Lock()
	defer s.storing.Unlock()
	if len(changes) > 0 {
		if err := s.config.Complete.Save(ctx, changes); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.complete, s.surveyed = known, true
	return nil
}

func imageOf(i *runtimev1.Image) containerd.Image {
	return containerd.Image{ID: i.GetId(), Names: append(append([]string{}, i.GetRepoTags()...), i.GetRepoDigests()...)}
}

// completed completes an image and logs a failure once: its container starts nevertheless.
func (s *Server) completed(ctx context.Context, runtime runtimev1.ImageServiceClient, image *runtimev1.Image) {
	if image == nil || s.config.Complete == nil {
		return
	}
	err := s.makeComplete(ctx, runtime, imageOf(image))
	if ctx.Err() != nil {
		return
	}
	s.mu.Lock()
	before := s.failures[image.Id]
	delete(s.failures, image.Id)
	if err != nil {
		s.failures[image.Id] = err.Error()
	}
	s.mu.Unlock()
	if err != nil && err.Error() != before {
		klog.FromContext(ctx).Error(err, "Failed to complete an image on the disk: a power cut may leave it incomplete", "image", image.Id)
	}
}

// makeComplete unpacks and writes an image that is not complete. It goes on when ctx ends, for the
// caller's next attempt.
func (s *Server) makeComplete(ctx context.Context, runtime runtimev1.ImageServiceClient, i containerd.Image) error {
	done := false
	err := s.containerd(ctx, runtime, func(c *containerd.Client) (err error) {
		before, ok := s.completeOf(i.ID)
		if !ok {
			return nil
		}
		done, err = c.Same(ctx, before.Layers)
		return err
	})
	if err != nil || done {
		return err
	}
	return s.once(ctx, i.ID, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, completeTimeout)
		defer cancel()
		return s.images(func(runtime runtimev1.ImageServiceClient) error {
			var l containerd.Layers
			unpackErr := s.containerd(ctx, runtime, func(c *containerd.Client) (err error) {
				l, err = c.Unpack(ctx, i)
				return err
			})
			if errors.Is(unpackErr, containerd.ErrForeign) {
				unpackErr = nil
			}
			// Also where it can't be unpacked here: it may be, and its container is about to start.
			if err := errors.Join(unpackErr, s.write(ctx, runtime)); err != nil {
				return err
			}
			return s.setComplete(ctx, i.ID, complete{Layers: l})
		})
	})
}

// once calls do, of which only one runs at a time for a key, with a context that does not end with
// ctx: it bounds itself.
func (s *Server) once(ctx context.Context, key string, do func(context.Context) error) error {
	result := s.flight.DoChan(key, func() (any, error) { return nil, do(context.WithoutCancel(ctx)) })
	select {
	case r := <-result:
		return r.Err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// pulled notes the layers of an image that is written.
func (s *Server) pulled(ctx context.Context, runtime runtimev1.ImageServiceClient, i containerd.Image) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var l containerd.Layers
	unpacked := true
	err := s.containerd(ctx, runtime, func(c *containerd.Client) (err error) {
		l, unpacked, err = c.Find(ctx, i)
		return err
	})
	if errors.Is(err, containerd.ErrForeign) {
		err, unpacked = nil, true
	}
	if err != nil || !unpacked { // the image's next question completes it
		return err
	}
	return s.setComplete(ctx, i.ID, complete{Layers: l})
}

func (s *Server) completeOf(id string) (complete, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, ok := s.complete[id]
	return c, ok
}

// known are the IDs of the complete images, and of those that could not be completed.
func (s *Server) known() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	ids := maps.Clone(s.failures)
	for id := range s.complete {
		ids[id] = ""
	}
	return slices.Collect(maps.Keys(ids))
}

// setComplete notes that an image's files are on the disk. Before the survey of this boot nobody
// knows that of layers that are there. Those that are doubtful stay so: a pull finds and keeps
// them.
func (s *Server) setComplete(ctx context.Context, id string, c complete) error {
	raw, err := json.Marshal(c)
	if err != nil || id == "" {
		return err
	}
	s.storing.Lock()
	defer s.storing.Unlock()
	s.mu.Lock()
	before, ok := s.complete[id]
	settled := !s.surveyed || ok && before.Layers == c.Layers
	s.mu.Unlock()
	if settled {
		return nil
	}
	if err := s.config.Complete.Save(ctx, map[string][]byte{id: raw}); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.complete[id] = c
	return nil
}

// forget forgets images that are gone.
func (s *Server) forget(ctx context.Context, gone []string) {
	if len(gone) == 0 {
		return
	}
	s.storing.Lock()
	defer s.storing.Unlock()
	changes := map[string][]byte{}
	s.mu.Lock()
	for _, id := range gone {
		changes[id] = nil
		delete(s.complete, id)
		delete(s.failures, id)
	}
	s.mu.Unlock()
	if err := s.config.Complete.Save(ctx, changes); err != nil {
		klog.FromContext(ctx).Error(err, "Failed to store that images are gone, retrying at the next start")
	}
}

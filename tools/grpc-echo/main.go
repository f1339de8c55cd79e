// A gRPC server that sends messages back, for scripts/grpc-calls: on a port that the kernel chooses, which it prints.
// For each line on standard input it prints how many calls there were.
//
// The message says how: "fail 5" ends the call with status 5, "wait" holds it until its deadline.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"strconv"
	"strings"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	pb "google.golang.org/grpc/examples/features/proto/echo"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"
)

// How many messages a stream of the server has.
const streamed = 10

type server struct {
	pb.UnimplementedEchoServer
	calls atomic.Int64
}

func (s *server) answer(ctx context.Context, message string) (*pb.EchoResponse, error) {
	if code, ok := strings.CutPrefix(message, "fail "); ok {
		number, _ := strconv.ParseUint(code, 10, 32)
		return nil, status.Error(codes.Code(number), "as asked for")
	}
	if message == "wait" {
		<-ctx.Done()
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	return &pb.EchoResponse{Message: message}, nil
}

func (s *server) UnaryEcho(ctx context.Context, in *pb.EchoRequest) (*pb.EchoResponse, error) {
	s.calls.Add(1)
	return s.answer(ctx, in.GetMessage())
}

func (s *server) ServerStreamingEcho(in *pb.EchoRequest, stream pb.Echo_ServerStreamingEchoServer) error {
	s.calls.Add(1)
	for range streamed {
		out, err := s.answer(stream.Context(), in.GetMessage())
		if err != nil {
			return err
		}
		if err := stream.Send(out); err != nil {
			return err
		}
	}
	return nil
}

func (s *server) ClientStreamingEcho(stream pb.Echo_ClientStreamingEchoServer) error {
	s.calls.Add(1)
	var messages []string
	for {
		in, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return stream.SendAndClose(&pb.EchoResponse{Message: strings.Join(messages, ",")})
		}
		if err != nil {
			return err
		}
		messages = append(messages, in.GetMessage())
	}
}

func (s *server) BidirectionalStreamingEcho(stream pb.Echo_BidirectionalStreamingEchoServer) error {
	s.calls.Add(1)
	for {
		in, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		out, err := s.answer(stream.Context(), in.GetMessage())
		if err != nil {
			return err
		}
		if err := stream.Send(out); err != nil {
			return err
		}
	}
}

func main() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(listener.Addr())
	served, echo := grpc.NewServer(), &server{}
	go func() {
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			fmt.Println(echo.calls.Load())
		}
	}()
	pb.RegisterEchoServer(served, echo)
	reflection.Register(served)
	log.Fatal(served.Serve(listener))
}

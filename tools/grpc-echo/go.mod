module oroshi/grpc-echo

go 1.24

require google.golang.org/grpc v1.79.3

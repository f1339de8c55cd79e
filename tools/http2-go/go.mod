module oroshi/http2-go

go 1.25.0
